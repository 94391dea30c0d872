/* The handoff: a release names the next holder, who has a short claim, and confirms it by asking again.
 *
 * Each atomic block is one script on the server. Time is cut down to what matters: a lease is counted by its client from
 * before the request was sent (`pend`: counted for the request under way; `val`: for what is believed), it may be over
 * at any moment, and the server's time for the key is over only after that. A claim may be over at any moment.
 * How often that happens to the living is bounded (ENDS), as are losses and crashes: what is proved is that nothing goes
 * wrong on the way, and that all goes well after the last of them.
 *
 * CLIENTS   how many
 * ROUNDS    acquisitions of each (0: without end)
 * CRASHES   clients that may crash, at any step
 * LOSSES    messages (requests, replies, wake-ups) that may be lost
 * ENDS      leases and claims of the living that may run out
 * LEAVES    a waiter may give up and give back
 * FENCES    fencing tokens are counted and checked (needs ROUNDS)
 *
 * Without one of its assumptions (each row of the runner defines one) the model must fail:
 * NO_CONFIRM         a pushed grant is taken for the lease
 * FROM_REPLY         validity counts from the reply
 * LATE_ACCEPTED      an answer that comes after its lease's end is accepted
 * CARELESS           a holder does not look at its deadline
 * NO_COMPARE         a release deletes any holder's lock
 * RECREATE           a renewal writes the key again when it is gone
 * SHORTER            an extension may ask for less time than is still believed
 * STALE_FENCE        the fencing token is taken from the wake-up
 * NO_RECHECK         a waiter trusts in being woken
 * CLAIM_FOR_EVER     a claim does not end by itself
 * KEEP_THE_DEAD      the server does not ask whether a waiter's process is there, and a claim does not end
 * LEAVE_SILENTLY     a waiter gives up without giving back, and a claim does not end
 * BARGE              a free lock goes to any client that asks, not to the queue's head
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef ROUNDS
#define ROUNDS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef ENDS
#define ENDS 1
#endif

#define NO_ONE 7
#define NONE 0
#define OVER 1
#define VALID 2 /* of pend and val: not over yet */

/* what the server's time for the key follows */
#define BY_CLAIM 0
#define BY_PEND 1
#define BY_VAL 2

/* server */
byte owner = NO_ONE;
byte until = BY_CLAIM;
chan queue = [CLIENTS] of { byte };
byte fence = 0;

/* clients, as the server and the time see them */
bool there[CLIENTS];    /* the inbox is subscribed */
bool dead[CLIENTS];
bool wants[CLIENTS];    /* it waits and has not given up */
bool believes[CLIENTS];
bool message[CLIENTS];  /* a wake-up lies in the inbox: the oldest one that was not read */
byte pend[CLIENTS];
byte val[CLIENTS];
byte held = 0;          /* how many believe */

byte crashes = CRASHES;
byte losses = LOSSES;
byte ends = ENDS;

#ifdef FENCES
byte said[CLIENTS];     /* the fencing token in the message */
byte last_fence = 0;
#define NEXT_FENCE fence++
#define SAY said[next_holder] = fence
#else
#define NEXT_FENCE skip
#define SAY skip
#endif

/* Exclusion: whenever someone begins to believe, no one else does. */
inline start_believing() {
  if
  :: !believes[me] -> believes[me] = true; held++
  :: else -> skip
  fi;
  assert(held <= 1)
}

inline stop_believing(who) {
  if
  :: believes[who] -> believes[who] = false; held--
  :: else -> skip
  fi
}

/* Take the head of the queue whose process is there, and hand it the lock; else leave it free. */
inline hand_over() {
  next_holder = NO_ONE;
  do
  :: nempty(queue) ->
     queue?next_holder;
#ifdef KEEP_THE_DEAD
     break
#else
     if
     :: there[next_holder] -> break
     :: else -> next_holder = NO_ONE
     fi
#endif
  :: empty(queue) -> break
  od;
  owner = next_holder;
  until = BY_CLAIM;
  if
  :: next_holder != NO_ONE ->
     NEXT_FENCE;
     if
     :: losses > 0 -> losses--
     :: true ->
        if
        :: !message[next_holder] -> message[next_holder] = true; SAY
        :: else -> skip /* the older one is still there */
        fi
     fi
  :: else -> skip
  fi;
  next_holder = NO_ONE
}

inline leave_queue() {
  if
  :: queue??[eval(me)] -> queue??eval(me)
  :: else -> skip
  fi
}

inline enter_queue() {
  if
  :: queue??[eval(me)] -> skip
  :: else -> queue!me
  fi
}

proctype Client(byte me) {
  byte next_holder = NO_ONE;
  byte rounds = ROUNDS;
  byte told = 0;
  bool granted = false;

again:
  atomic { !dead[me] -> wants[me] = true; message[me] = false };
ask:
  atomic { !dead[me] -> pend[me] = VALID };
  atomic { !dead[me] -> /* acquire.lua */
    if
    :: losses > 0 -> losses-- /* the request is lost */
    :: true ->
       if
       :: owner == me -> until = BY_PEND; granted = true
       :: owner == NO_ONE ->
#ifdef BARGE
          leave_queue();
          owner = me; NEXT_FENCE;
#else
          enter_queue();
          hand_over();
#endif
          if
          :: owner == me -> until = BY_PEND; granted = true; message[me] = false
          :: else -> skip
          fi
       :: else -> enter_queue()
       fi;
#ifndef STALE_FENCE
       told = fence;
#endif
       if
       :: losses > 0 && granted -> losses--; granted = false /* the reply is lost */
       :: true -> skip
       fi
    fi
  };
take:
  atomic { !dead[me] ->
#ifdef FROM_REPLY
    pend[me] = VALID;
#endif
    if
#ifdef LATE_ACCEPTED
    :: granted ->
#else
    :: granted && pend[me] == VALID ->
#endif
       val[me] = VALID; pend[me] = NONE; granted = false; wants[me] = false;
       if :: owner == me && until == BY_PEND -> until = BY_VAL :: else -> skip fi;
       start_believing();
#ifdef FENCES
       assert(told > last_fence);
       last_fence = told;
#endif
       goto holding
    :: else -> granted = false
    fi
  };
  /* woken, or looking for itself */
  if
  :: atomic { !dead[me] && message[me] ->
       message[me] = false;
#ifdef STALE_FENCE
       told = said[me];
#endif
#ifdef NO_CONFIRM
#ifdef FENCES
       told = said[me];
#endif
       pend[me] = VALID; granted = true;
       goto take
#endif
     }
#ifndef NO_RECHECK
  :: atomic { !dead[me] -> skip } /* its own timer */
#endif
#ifdef LEAVES
  :: atomic { !dead[me] -> wants[me] = false; pend[me] = NONE };
#ifndef LEAVE_SILENTLY
     atomic { !dead[me] -> /* release.lua, which buries the token */
       leave_queue();
       if :: owner == me -> hand_over() :: else -> skip fi
     };
#endif
     goto next
#endif
  fi;
  goto ask;

holding:
  if
  :: atomic { !dead[me] -> pend[me] = VALID };
     atomic { !dead[me] -> /* renew.lua */
       if
       :: owner == me -> until = BY_PEND; granted = true
#ifdef RECREATE
       :: owner == NO_ONE -> owner = me; until = BY_PEND; granted = true
#endif
       :: else -> skip
       fi
     };
     atomic { !dead[me] ->
       if
       /* only while what is believed has not ended */
#ifdef LATE_ACCEPTED
       :: granted -> val[me] = VALID; start_believing()
#elif defined(RECREATE)
       :: granted && pend[me] == VALID -> val[me] = VALID; start_believing()
#else
       :: granted && val[me] == VALID && pend[me] == VALID -> skip
#endif
       :: else -> skip
       fi;
#ifdef FENCES
       assert(!believes[me] || told == last_fence);
#endif
       if :: owner == me && until == BY_PEND -> until = BY_VAL :: else -> skip fi;
       pend[me] = NONE; granted = false
     }
  :: true -> skip
  fi;
  atomic { !dead[me] -> stop_believing(me); val[me] = NONE; told = 0 };
  atomic { !dead[me] -> /* release.lua */
#ifndef NO_COMPARE
    if :: owner == me -> hand_over() :: else -> skip fi
#else
    hand_over()
#endif
  };
next:
#if ROUNDS > 0
  rounds--;
  if
  :: rounds > 0 -> goto again
  :: else -> skip
  fi
#else
  goto again
#endif
}

/* A lease may be over at any moment, first where its client counts it. Those of the dead are over some day. */
proctype Time(byte who) {
end:
  do
#ifdef SHORTER
  :: atomic { pend[who] == VALID && (dead[who] || ends > 0) ->
#else
  /* asked for later than what is believed, and for no less time */
  :: atomic { pend[who] == VALID && val[who] != VALID && (dead[who] || ends > 0) ->
#endif
       if :: dead[who] -> skip :: else -> ends-- fi;
       pend[who] = OVER }
  :: atomic { val[who] == VALID && (dead[who] || ends > 0) ->
       if :: dead[who] -> skip :: else -> ends-- fi;
       val[who] = OVER;
#ifndef CARELESS
       stop_believing(who)
#endif
     }
  od
}

#define expired ((until == BY_PEND && pend[owner] != VALID) || (until == BY_VAL && val[owner] != VALID))

/* The server's time for a key: after what its holder counts. */
proctype Expiry() {
end:
  do
  :: atomic { owner != NO_ONE && expired -> owner = NO_ONE; until = BY_CLAIM }
  od
}

/* A claim ends by itself: that of a living client at times, that of one that does not wait in any case. */
proctype Claims() {
end:
  do
#if !defined(CLAIM_FOR_EVER) && !defined(KEEP_THE_DEAD) && !defined(LEAVE_SILENTLY)
  :: atomic { owner != NO_ONE && until == BY_CLAIM && wants[owner] && ends > 0 -> ends--; owner = NO_ONE }
  :: atomic { owner != NO_ONE && until == BY_CLAIM && !wants[owner] -> owner = NO_ONE }
#else
  :: false
#endif
  od
}

/* A client that crashes leaves its connection closed, or half-open. */
proctype Crash() {
end:
  do
  :: atomic { crashes > 0 ->
       if
       :: !dead[0] -> dead[0] = true; wants[0] = false; stop_believing(0); if :: there[0] = false :: skip fi
       :: !dead[1] -> dead[1] = true; wants[1] = false; stop_believing(1); if :: there[1] = false :: skip fi
       fi;
       crashes-- }
  od
}

init {
  byte i = 0;
  atomic {
    do
    :: i < CLIENTS -> there[i] = true; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < CLIENTS -> run Client(i); run Time(i); i++
    :: else -> break
    od;
    i = 0;
    run Expiry();
    run Claims();
    run Crash()
  }
}

#ifdef LIVENESS
/* A waiter that neither dies nor gives up eventually holds the lock. */
ltl waiting_ends { [] (wants[0] -> <> !wants[0]) }
#endif
