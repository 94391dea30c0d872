/* Tenures: clients whose workers queue among themselves and hand on without the server; grants that need no
 * confirmation; leases that are kept.
 *
 * Two clients. Each atomic block is one script on the server, or one
 * step of a process that nothing of its own process can come between. Time counts down in ticks, for all alike: a
 * server's key (`key_left`), what a worker trusts (`left`), and what an answer to the request under way would be worth
 * (`pend`), which counts from before it is sent. Ticks may come at any moment, TICKS of them; more only when
 * nothing else can go on. Every loop uses up one of the limited things, so that a run that does not come to its
 * end is a waiter that waits indefinitely.
 *
 * W        workers, at most 4
 * FIRST    how many of them belong to the first client
 * ROUNDS   acquisitions of each worker; FIRST_ROUNDS: of the first client's, if fewer
 * HANDS    hand-ons in a tenure (its time, in turns)
 * TICKS    units of time that pass at any moment
 * LOSSES   requests, answers and messages that are lost
 * LATES    requests that are carried out after their client gave them up
 * LOOKS    times that a waiter asks again for no reason
 * RENEWS   times that a lease is stretched
 * LEAVES   waiters that give up
 * CUTS     waiters of which that is interrupted before they tell the next one
 * CRASHES  clients that crash
 * KEEPS    times that a lease is kept after its last release
 * ORDER    count who overtakes whom (only where no one leaves and nothing is lost)
 * ONE_WIRE messages and answers come over one connection, in the order in which the server made them
 *
 * Always demanded: leases do not overlap; fencing tokens grow with every lease; everyone who stays has its turns;
 * in the end no one holds, and no one is queued.
 *
 * Without one of its assumptions (each row of the runner defines one) the model must fail:
 * OLD_GRANT         a pushed grant counts although it may be older than the answer
 * FROM_PUSH         a pushed grant's validity counts from when it is read
 * FROM_SENT         it counts from the last request, answered or not
 * FRESH_DEADLINE    a lease that was handed on counts its validity from then
 * TAKE_LATE         a lease that was handed on is taken although its time is over
 * SAME_FENCE        a lease that was handed on has its predecessor's fencing token
 * BEYOND_BLOCK      hand-ons go on when the block of fencing tokens is used up
 * NO_BLOCK          a grant reserves one fencing token only
 * BLIND_WRITE_BACK  what was not used of a block is written back without comparing the lock's token
 * OTHER_BLOCK       it is written back although the token has another block by now
 * HAND_AFTER_SEND   handed on after a release whose answer was lost
 * FORGET_STRAY      that a request may still come is not passed on with the token
 * PASS_UNBURIED     a pass does not bury the token that it releases
 * NO_TENURE_END     hand-ons go on while anyone waits here
 * LATE_STAMP        who is passed the lock queues by the server's time, not by its own arrival
 * LEAVE_HANDED      who was handed the lock and gives up does not hand it on
 * LEAVE_DUTY        who is to pass the lock and gives up does not release it
 * LOCAL_TRUST       waiters trust in being told that they are first
 * KEEP_TRUST        a keeper trusts in being told that others want it
 * KEEP_LATE         a kept lease is taken again although its time is over
 */

#ifndef W
#define W 4
#endif
#ifndef FIRST
#define FIRST 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef FIRST_ROUNDS
#define FIRST_ROUNDS ROUNDS
#endif
#ifndef HANDS
#define HANDS 1
#endif
#ifndef TICKS
#define TICKS 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef LATES
#define LATES 0
#endif
#ifndef LOOKS
#define LOOKS 0
#endif
#ifndef RENEWS
#define RENEWS 0
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef KEEPS
#define KEEPS 0
#endif

#define TTL 3
#define CLAIM 2
/* Fencing tokens that a grant reserves, and what a client takes that for. */
#ifndef ITS_BLOCK
#define ITS_BLOCK 2
#endif
#ifdef NO_BLOCK
#define BLOCK 1
#else
#define BLOCK ITS_BLOCK
#endif
#define NO_ONE 9
#define client(w) ((w) % W < FIRST -> 0 : 1)

/* server; a token is a worker's round: worker + W * round */
#define TOKENS (W * ROUNDS)
#define worker(token) ((token) % W)
byte owner = NO_ONE;
byte key_left = 0;
byte fence = 0;          /* the stored one: the end of the holder's block */
chan queue = [TOKENS] of { byte, byte }; /* arrival, token: in this order */
bool buried[TOKENS];

/* the network */
bool there[2];           /* the inbox is subscribed */
chan inbox0 = [2] of { byte };
chan inbox1 = [2] of { byte };
chan inbox2 = [2] of { byte };
chan inbox3 = [2] of { byte };
bool ghost[TOKENS];           /* an ask that will be carried out some time */
byte pending = 0;
byte ghost_old[TOKENS];       /* and what it releases first */
byte ghost_last[TOKENS];
bool wanted[2];          /* told to a keeper */

/* clients */
bool dead[2];
chan local0 = [W] of { byte };
chan local1 = [W] of { byte };
byte asker[2];           /* who of its workers asks the server */
byte holder[2];          /* who of its workers has the tenure's lease */
byte kept[2];            /* the token of a lease that is kept, its last fencing token, its block's end, its time */
byte kept_fence[2];
byte kept_end[2];
byte kept_left[2];
bool told_first[W];

/* leases and turns, by worker */
byte tok[W];             /* the token on the server */
byte number[W];          /* fencing token */
byte last_number[W];     /* end of the block */
byte hands[W];           /* hand-ons of this tenure so far */
byte left[W];
byte pend[W];
byte fresh[W];           /* what a claim is worth that was made after the last answer */
bool in[W];
bool handed[W];
bool duty[W];
bool wants[W];
bool stray[TOKENS];           /* by token: a request for it was not answered */
byte named[W];           /* the fencing token that the last answer named */
byte came[TOKENS];
byte mine[W];            /* the token of its turn */
bool known[W];
#ifdef ORDER
byte over[W];            /* leases of those who came later; tenures of which those were, and the last one's token */
byte tenures[W];
byte whose[W];
#endif

byte last_fence = 0;
byte clock = 1;
byte ended = 0;

byte ticks = TICKS;
byte losses = LOSSES;
byte lates = LATES;
byte looks = LOOKS;
byte renews = RENEWS;
byte leaves = LEAVES;
byte cuts = CUTS;
byte crashes = CRASHES;
byte keeps = KEEPS;

#define believes(w) (in[w] && left[w] > 0)

inline push(to, what) {
  if
  :: losses > 0 -> losses--
  :: mine[worker(to)] == to && worker(to) == 0 && len(inbox0) < 2 -> inbox0!what
  :: mine[worker(to)] == to && worker(to) == 1 && len(inbox1) < 2 -> inbox1!what
  :: mine[worker(to)] == to && worker(to) == 2 && len(inbox2) < 2 -> inbox2!what
  :: mine[worker(to)] == to && worker(to) == 3 && len(inbox3) < 2 -> inbox3!what
  :: else -> skip
  fi
}

/* Give a free lock to the first of the queue whose client is there; `me_too`: the one that asks need not be looked for. */
inline hand_over(me_too) {
  do
  :: len(queue) > 0 && owner == NO_ONE ->
     queue?at, next_one;
     if
     :: next_one == me_too -> owner = next_one; key_left = TTL; fence = fence + BLOCK
     :: next_one != me_too && there[client(next_one)] ->
        owner = next_one; key_left = CLAIM; fence = fence + BLOCK;
        push(next_one, fence - BLOCK + 1)
     :: else -> skip
     fi
  :: else -> break
  od;
  at = 0; next_one = 0
}

/* Release a token, whose last used fencing token is `last`. */
inline let_go(token, last, by) {
#ifdef BLIND_WRITE_BACK
  if :: last > 0 -> fence = last :: else -> skip fi;
#endif
  if
  :: owner == token ->
#ifdef OTHER_BLOCK
     if :: last > 0 -> fence = last :: else -> skip fi;
#else
     /* A late ask may have granted this token again, after others: then it is of another block. */
     if :: last > 0 && fence >= last && last + BLOCK > fence -> fence = last :: else -> skip fi;
#endif
     owner = NO_ONE; key_left = 0;
     hand_over(by)
  :: else -> skip
  fi
}

inline unqueue(token) {
  if
  :: queue??[_, eval(token)] -> queue??_, eval(token)
  :: else -> skip
  fi
}

/* acquire.lua, and pass.lua where there is something to release first (`old`, `last`). */
inline ask_script(me_, old_, last_) {
  if
  :: buried[me_] -> skip
  :: else ->
     if
     :: owner == me_ -> if :: key_left < TTL -> key_left = TTL :: else -> skip fi
     :: else ->
        if
        :: queue??[_, eval(me_)] -> skip
#ifdef LATE_STAMP
        :: else -> queue!!clock, me_; clock++
#else
        :: else -> queue!!came[me_], me_
#endif
        fi;
        if
        :: old_ != NO_ONE ->
           let_go(old_, last_, me_);
#ifndef PASS_UNBURIED
           if :: stray[old_] -> buried[old_] = true; unqueue(old_) :: else -> skip fi
#endif
        :: else -> skip
        fi;
        if
        :: owner == NO_ONE -> hand_over(me_)
        :: else -> skip
        fi;
        if
        :: owner != NO_ONE && owner != me_ && kept[client(owner)] == owner ->
           if :: losses > 0 -> losses-- :: wanted[client(owner)] = true fi
        :: else -> skip
        fi
     fi
  fi
}

inline local_len(n_) { n_ = (c == 0 -> len(local0) : len(local1)) }
inline local_take(n_) { if :: c == 0 -> local0?n_ :: else -> local1?n_ fi }
#define first_here ((c == 0 && local0?[eval(me)]) || (c == 1 && local1?[eval(me)]))
#define hears ((me == 0 && len(inbox0) > 0) || (me == 1 && len(inbox1) > 0) || (me == 2 && len(inbox2) > 0) || (me == 3 && len(inbox3) > 0))
inline hear(what) {
  if
  :: me == 0 -> inbox0?what
  :: me == 1 -> inbox1?what
  :: me == 2 -> inbox2?what
  :: me == 3 -> inbox3?what
  fi
}
inline forget_messages() {
  do
  :: hears -> hear(told)
  :: else -> break
  od;
  told = 0
}

#ifdef NO_TENURE_END
#define in_tenure true
#else
#define in_tenure (hands[me] < HANDS)
#endif
#ifdef BEYOND_BLOCK
#define in_block true
#else
#define in_block (number[me] < last_number[me])
#endif
#define may_hand_on (left[me] > 0 && in_tenure && in_block)
#ifdef LOCAL_TRUST
#define is_told told_first[me]
#else
#define is_told true
#endif
#ifdef FORGET_STRAY
#define strays (stray[old] && old == mine[me])
#else
#define strays stray[old]
#endif
#ifdef KEEP_TRUST
#define sees_queue false
#else
#define sees_queue (len(queue) > 0)
#endif

/* A lease begins. */
inline start() {
  k = 0;
  do
  :: k < W -> assert(k == me || !believes(k)); k++
  :: else -> break
  od;
  assert(number[me] > last_fence);
  last_fence = number[me];
#ifdef ORDER
  k = 0;
  do
  :: k < W ->
     if
     :: client(k) != c && wants[k] && known[k] && came[mine[k]] < came[mine[me]] ->
        over[k]++; assert(over[k] <= 1 + HANDS);
        if
        :: hands[me] == 0 || whose[k] != tok[me] -> whose[k] = tok[me]; tenures[k]++; assert(tenures[k] <= 1)
        :: else -> skip
        fi
     :: else -> skip
     fi;
     k++
  :: else -> break
  od;
  over[me] = 0; tenures[me] = 0; whose[me] = 0;
#endif
  k = 0;
  in[me] = true; wants[me] = false; known[me] = false; came[mine[me]] = 0;
  holder[c] = me; if :: asker[c] == me -> asker[c] = NO_ONE :: else -> skip fi;
  pend[me] = 0; fresh[me] = 0; named[me] = 0; told = 0
}

inline end_of_lease() {
  in[me] = false; left[me] = 0; number[me] = 0; last_number[me] = 0; hands[me] = 0; tok[me] = NO_ONE
}

proctype Worker(byte me) {
  byte c = client(me);
  byte rounds = (me < FIRST -> FIRST_ROUNDS : ROUNDS);
  byte at = 0, next_one = 0, k = 0, n = 0, told = 0;
  byte old = NO_ONE, old_last = 0;
  bool answered = false;
  {
  skip;
again:
  atomic {
    mine[me] = me + W * (ROUNDS - rounds);
    came[mine[me]] = clock; clock++;
    wants[me] = true; stray[mine[me]] = false;
    forget_messages();
    /* Its client is queued, or holds and has not yet decided to release: then it is known to be behind that. */
    known[me] = (holder[c] != NO_ONE) || (asker[c] != NO_ONE && known[asker[c]]);
    local_len(n);
    told_first[me] = (n == 0 && asker[c] == NO_ONE && holder[c] == NO_ONE);
    n = 0;
    if :: c == 0 -> local0!me :: else -> local1!me fi
  };
waits_here:
  if
  :: atomic { handed[me] ->
       handed[me] = false;
       if
#ifndef TAKE_LATE
       :: left[me] == 0 -> /* its claim ran out: released, and asked for again */
          old = tok[me]; old_last = number[me]; holder[c] = NO_ONE; asker[c] = me;
          goto asks
#endif
       :: else ->
#ifdef TAKE_LATE
          if :: left[me] == 0 -> left[me] = 1 :: else -> skip fi;
#endif
          start()
       fi };
     goto holds
  :: atomic { duty[me] -> duty[me] = false; old = tok[me]; old_last = number[me] };
     goto asks
#if KEEPS > 0
  :: atomic { first_here && kept[c] != NO_ONE && asker[c] == NO_ONE && holder[c] == NO_ONE ->
       local_take(n);
       n = 0;
       tok[me] = kept[c]; number[me] = kept_fence[c]; last_number[me] = kept_end[c]; left[me] = kept_left[c];
       kept[c] = NO_ONE; kept_fence[c] = 0; kept_end[c] = 0; kept_left[c] = 0;
       if
#ifdef KEEP_LATE
       :: number[me] < last_number[me] -> if :: left[me] == 0 -> left[me] = 1 :: else -> skip fi;
#else
       :: number[me] < last_number[me] && left[me] > 0 ->
#endif
          number[me]++; start()
       :: else -> old = tok[me]; old_last = number[me]; asker[c] = me; goto asks
       fi };
     goto holds
#endif
  :: atomic { first_here && is_told && asker[c] == NO_ONE && kept[c] == NO_ONE &&
              (holder[c] == NO_ONE || left[holder[c]] == 0) ->
       local_take(n);
       n = 0;
       if :: holder[c] != NO_ONE -> holder[c] = NO_ONE :: else -> skip fi;
       asker[c] = me };
     goto asks
#if LEAVES > 0
  :: atomic { leaves > 0 && !handed[me] && !duty[me] ->
       leaves--;
       if :: c == 0 && local0??[eval(me)] -> local0??eval(me) :: c == 1 && local1??[eval(me)] -> local1??eval(me) :: else -> skip fi;
       wants[me] = false };
     goto next
  :: atomic { leaves > 0 && (handed[me] || duty[me]) ->
       leaves--;
       wants[me] = false;
       if
       :: handed[me] ->
          handed[me] = false;
#ifdef LEAVE_HANDED
          holder[c] = NO_ONE; end_of_lease(); goto next
#endif
       :: else ->
          duty[me] = false; asker[c] = NO_ONE;
#ifdef LEAVE_DUTY
          end_of_lease(); goto next
#else
          holder[c] = me; left[me] = 0
#endif
       fi };
     goto releases
#endif
  fi;

asks:
  atomic { pend[me] = TTL; answered = false };
  atomic {
    if
    :: losses > 0 -> losses--; stray[mine[me]] = true
    :: lates > 0 && !ghost[mine[me]] ->
       lates--; pending++; stray[mine[me]] = true; ghost[mine[me]] = true; ghost_old[mine[me]] = old; ghost_last[mine[me]] = old_last
    :: true ->
       ask_script(mine[me], old, old_last);
       answered = true;
#ifdef ONE_WIRE
       forget_messages();
#endif
       if
       :: losses > 0 -> losses--; stray[mine[me]] = true; answered = false
       :: true -> skip
       fi;
#ifdef ORDER
       k = 0;
       do
       :: k < W -> if :: client(k) == c && wants[k] -> known[k] = true :: else -> skip fi; k++
       :: else -> break
       od;
       k = 0;
#endif
       /* what the answer says */
       told = (owner == mine[me] -> 1 : 0);
       n = fence - BLOCK + 1
    fi
  };
  atomic {
    if
    :: !answered ->
#ifdef FROM_SENT
       fresh[me] = CLAIM;
#endif
       told = 0; n = 0; pend[me] = 0; goto trouble
    :: answered && told == 1 && pend[me] > 0 ->
       tok[me] = mine[me]; number[me] = n; last_number[me] = n + ITS_BLOCK - 1; hands[me] = 0; left[me] = pend[me];
       old = NO_ONE; old_last = 0; n = 0; answered = false;
       start();
       goto holds
    :: answered && told == 1 && pend[me] == 0 -> /* too late to be worth anything */
       stray[mine[me]] = true; told = 0; n = 0; old = NO_ONE; old_last = 0; goto asks
    :: else ->
       fresh[me] = (pend[me] > TTL - CLAIM -> pend[me] - (TTL - CLAIM) : 0);
       named[me] = n; n = 0; told = 0; pend[me] = 0; old = NO_ONE; old_last = 0; tok[me] = NO_ONE; number[me] = 0
    fi;
    answered = false
  };
queued:
  if
  :: atomic { hears ->
       hear(told);
       if
#ifdef OLD_GRANT
       :: fresh[me] > 0 ->
#elif defined(ONE_WIRE)
       :: fresh[me] > 0 ->
#elif defined(FROM_PUSH)
       :: told > named[me] ->
#else
       :: told > named[me] && fresh[me] > 0 ->
#endif
          tok[me] = mine[me]; number[me] = told; last_number[me] = told + ITS_BLOCK - 1; hands[me] = 0;
#ifdef FROM_PUSH
          left[me] = CLAIM;
#else
          left[me] = fresh[me];
#endif
          start(); goto holds
       :: else -> told = 0 /* confirm it */
       fi };
     goto asks
  /* its own timer, which it needs when the lock is free, and when a claim of its own has run out */
  :: atomic { owner == NO_ONE || (owner != mine[me] && !queue??[_, eval(mine[me])]) -> skip };
     goto asks
  :: atomic { looks > 0 -> looks-- };
     goto asks
#if LEAVES > 0
  :: atomic { leaves > 0 -> leaves--; wants[me] = false; pend[me] = 0; fresh[me] = 0 };
     goto gives_back
#endif
  fi;

trouble:
#ifdef FROM_SENT
  /* a message may come before the request is repeated */
  if
  :: atomic { hears && tok[me] == NO_ONE && named[me] > 0 ->
       hear(told);
       if
       :: told > named[me] && fresh[me] > 0 ->
          tok[me] = mine[me]; number[me] = told; last_number[me] = told + ITS_BLOCK - 1; hands[me] = 0; left[me] = fresh[me];
          start(); goto holds
       :: else -> told = 0
       fi }
  :: true -> skip
  fi;
#endif
  goto asks;

holds:
  if
  :: atomic { renews > 0 && left[me] > 0 -> renews--; pend[me] = TTL };
     atomic {
       if
       :: owner == tok[me] -> if :: key_left < TTL -> key_left = TTL :: else -> skip fi; answered = true
       :: else -> skip
       fi };
     atomic {
       if
       :: answered && left[me] > 0 && pend[me] > left[me] -> left[me] = pend[me]
       :: else -> skip
       fi;
       pend[me] = 0; answered = false }
  :: true -> skip
  fi;
releases:
  atomic {
    in[me] = false;
    local_len(n);
    old = tok[me]; old_last = number[me];
    if
    :: holder[c] == me && n > 0 && asker[c] == NO_ONE && may_hand_on ->
       local_take(n);
       handed[n] = true; tok[n] = tok[me]; last_number[n] = last_number[me]; hands[n] = hands[me] + 1;
#ifdef SAME_FENCE
       number[n] = number[me];
#else
       number[n] = number[me] + 1;
#endif
#ifdef FRESH_DEADLINE
       left[n] = TTL;
#else
       left[n] = left[me];
#endif
       holder[c] = n; n = 0; old = NO_ONE; old_last = 0;
       end_of_lease();
       goto next
    :: holder[c] == me && n > 0 && asker[c] == NO_ONE && !may_hand_on ->
       local_take(n);
       duty[n] = true; tok[n] = tok[me]; number[n] = number[me];
       asker[c] = n; holder[c] = NO_ONE; n = 0; old = NO_ONE; old_last = 0;
       end_of_lease();
       goto next
#if KEEPS > 0
    :: holder[c] == me && n == 0 && asker[c] == NO_ONE && keeps > 0 && left[me] > 0 && kept[c] == NO_ONE && !wanted[c] ->
       keeps--;
       kept[c] = tok[me]; kept_fence[c] = number[me]; kept_end[c] = last_number[me]; kept_left[c] = left[me];
       holder[c] = NO_ONE; n = 0; old = NO_ONE; old_last = 0;
       end_of_lease();
       goto next
#endif
    :: else ->
       n = 0;
#ifdef HAND_AFTER_SEND
       skip
#else
       if :: holder[c] == me -> holder[c] = NO_ONE :: else -> skip fi;
       end_of_lease()
#endif
    fi
  };
sends_release:
  atomic { /* release.lua; it buries the token where a request for it may still come */
    if
    :: losses > 0 -> losses--; goto sends_release
    :: true ->
       let_go(old, old_last, NO_ONE);
       if :: old != NO_ONE && strays -> buried[old] = true; unqueue(old) :: else -> skip fi;
       if
       :: losses > 0 -> losses--; /* the answer is lost */
#ifdef HAND_AFTER_SEND
          local_len(n);
          if
          :: n > 0 && holder[c] == me && asker[c] == NO_ONE && may_hand_on -> goto releases
          :: else -> n = 0
          fi;
#endif
          goto sends_release
       :: true -> skip
       fi
    fi;
#ifdef HAND_AFTER_SEND
    if :: holder[c] == me -> holder[c] = NO_ONE :: else -> skip fi;
    end_of_lease();
#endif
    wanted[c] = false;
    n = 0; old = NO_ONE; old_last = 0
  };
  goto next;

#if LEAVES > 0
gives_back:
  atomic {
    if
    :: losses > 0 -> losses--; goto gives_back
    :: true ->
       unqueue(mine[me]);
       let_go(mine[me], 0, NO_ONE);
       buried[mine[me]] = true;
       if :: old != NO_ONE -> let_go(old, old_last, NO_ONE) :: else -> skip fi
    fi;
    old = NO_ONE; old_last = 0
  };
  atomic {
    asker[c] = NO_ONE;
    /* tell the next one that it is first, unless that is interrupted */
    if
    :: cuts > 0 -> cuts--
    :: true ->
       if
       :: c == 0 && len(local0) > 0 -> local0?<n>; told_first[n] = true
       :: c == 1 && len(local1) > 0 -> local1?<n>; told_first[n] = true
       :: else -> skip
       fi
    fi;
    n = 0
  };
#endif

next:
  atomic {
    rounds--;
    local_len(n);
    if
    :: n > 0 -> n = 0; if :: c == 0 -> local0?<n> :: else -> local1?<n> fi;
#if CUTS == 0
       told_first[n] = true
#else
       skip
#endif
    :: else -> skip
    fi;
    n = 0
  };
  if
  :: rounds > 0 -> goto again
  :: else -> skip
  fi
  } unless { dead[c] };
  ended++
}

#if KEEPS > 0
/* A client's watchdog: gives up what is kept when it is wanted, or when a renewal's answer says that someone is queued,
 * or when `cache_for` is over (only then does the key's time run: until then it is renewed). */
proctype Keeper(byte c) {
  byte at = 0, next_one = 0, old, old_last;
end:
  do
  :: atomic { !dead[c] && kept[c] != NO_ONE && (wanted[c] || sees_queue || ended == W) ->
       old = kept[c]; old_last = kept_fence[c]; kept[c] = NO_ONE; kept_fence[c] = 0; kept_end[c] = 0; kept_left[c] = 0;
       wanted[c] = false };
     atomic { let_go(old, old_last, NO_ONE); old = 0; old_last = 0 }
  od
}
#endif

/* Requests that come late. */
proctype Late() {
  byte at = 0, next_one = 0, k = 0;
end:
  do
  :: atomic { k < TOKENS && ghost[k] ->
       ghost[k] = false; pending--;
       ask_script(k, ghost_old[k], ghost_last[k]);
       ghost_old[k] = 0; ghost_last[k] = 0 }
  :: atomic { k < TOKENS && !ghost[k] && pending > 0 -> k++ }
  :: atomic { k == TOKENS -> k = 0 }
  od
}

inline minus(what) { if :: what > 0 -> what-- :: else -> skip fi }
inline tick() {
  i = 0;
  do
  :: i < W -> minus(left[i]); minus(pend[i]); minus(fresh[i]); i++
  :: else -> break
  od;
  i = 0;
  minus(kept_left[0]); minus(kept_left[1]);
  if
  :: key_left > 0 -> key_left--; if :: key_left == 0 -> owner = NO_ONE :: else -> skip fi
  :: else -> skip
  fi
}

#define kept_alive (owner != NO_ONE && !dead[client(owner)] && kept[client(owner)] == owner)
proctype Time() {
  byte i = 0;
end:
  do
  :: atomic { ticks > 0 -> ticks--; tick() }
  :: atomic { timeout && owner != NO_ONE && !kept_alive && ended < W -> tick() }
  od
}

/* A client that crashes leaves its connection closed, or half-open. */
proctype Crash() {
end:
  do
  :: atomic { crashes > 0 -> crashes--;
       dead[0] = true; if :: there[0] = false :: skip fi;
       in[0] = false; in[1] = false; wants[0] = false; wants[1] = false }
  od
}

init {
  byte i = 0;
  atomic {
    there[0] = true; there[1] = true;
    asker[0] = NO_ONE; asker[1] = NO_ONE; holder[0] = NO_ONE; holder[1] = NO_ONE;
    kept[0] = NO_ONE; kept[1] = NO_ONE;
    do
    :: i < W -> tok[i] = NO_ONE; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < W -> run Worker(i); i++
    :: else -> break
    od;
    i = 0;
    run Time();
#if LATES > 0
    run Late();
#endif
#if KEEPS > 0
    run Keeper(0); run Keeper(1);
#endif
#if CRASHES > 0
    run Crash()
#endif
  };
  /* Nothing is left behind, beside what the dead leave until its time is over. */
  atomic {
    ended == W && pending == 0 && kept[0] == NO_ONE && kept[1] == NO_ONE &&
      !(KEEPS > 0 && owner != NO_ONE && !dead[client(owner)]) ->
    assert(owner == NO_ONE || dead[client(owner)]);
    assert(dead[0] || len(queue) == 0)
  }
}
