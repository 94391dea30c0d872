-- Part: the server's time, read once.
local moment = redis.call('TIME')
local now_us = moment[1] * 1000000 + moment[2]
local now_ms = math.floor(now_us / 1000)
