-- Part: the server's time, read once.
local server_time = redis.call('TIME')
local now_us = server_time[1] * 1000000 + server_time[2]
local now_ms = math.floor(now_us / 1000)
