/* Crash release: a lease lasts as long as its client was proved to be there recently; one whose inbox has no subscriber
 * any more is passed on before its ttl is over.
 *
 * One client, A, takes a lock with one token after the other; B stands for all others: it waits, looks at any moment,
 * and holds. Each atomic block is one script on the server, or one step of A. Time goes on in ticks, for all alike: how
 * long A trusts (`lease`, `proved`), how old its requests are (`since`), a key's ttl and a mark's age. A is paused, or
 * dead, by taking no step.
 *
 * A link of A carries one request at a time. Either side may close it at any moment, and what was sent over it may be
 * carried out until the server has closed it. The server may end a subscription alone, as where a slot has moved.
 *
 * The key beside the lock is ALIVE (a grant or renewal saw the inbox, on this run), or GONE: a mark; a look did not.
 *
 * LINKS      links that A may have beside each other
 * TOKS       tokens of A
 * FAILOVERS  servers that are promoted; all that was written is copied before, and the former one writes no more
 * LOSSY      what was written last may be missing on the copy, and the former one goes on until it is told; A does not
 *            go back to it from a newer one (there a lease that is only as long as its ttl is lost as well); nothing is
 *            handed over
 * RESTARTS   servers that come back with their data
 * MOVES      times that the lock's slot moves to the other server
 *
 * Always demanded: A does not trust a token when it is passed on by its mark, nor by an answer that is under way then;
 * except where LOSSY, B never holds while A trusts. And the promise: a token is passed on by its mark only if the server has closed a link or a subscription of A
 * since its last grant or renewal.
 *
 * Without one of its assumptions (each row of the runner defines one) the model must fail:
 * FROM_ANSWER  a renewal is a proof from its answer on
 * MARK_STAYS   a renewal does not clear the mark
 * NO_MARK      the lock is passed on at the first look without a subscriber
 * NO_DRIFT     the server waits no longer than A trusts, though its clock may be faster
 * NO_PROOF     A trusts until its deadline, however long nothing has proved that it is there
 * OTHER_RUN    what was written on another run counts
 * RUN_ID       a run is told by the server's process, so that it is the same after a failover and back
 * BLIND_PROOF  a renewal that did not see the inbox is answered as one that did
 * BLIND_ALIVE  and writes ALIVE, too
 * TRUST_PUSH   a lease that was handed over is trusted for its claim window, whatever is sent meanwhile
 * STRAY_PUSH   it is taken without asking again although an earlier ask may have been granted
 */

#ifndef LINKS
#define LINKS 2
#endif
#ifndef TOKS
#define TOKS 1
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef MOVES
#define MOVES 0
#endif
#if FAILOVERS + MOVES > 0
#define SERVERS 2
#else
#define SERVERS 1
#endif

/* In ticks: A trusts for G after a proof and for TTL after a renewal; a key lasts one longer. A mark is old after WAIT
 * by the server's clock, which may gain one tick on A's in that time. */
#define G 1
#ifndef TTL
#define TTL 3
#endif
#define CLAIM 2
#ifdef LOSSY
#define MAY_PUSH false
#else
#define MAY_PUSH true
#endif
#ifdef NO_DRIFT
#define WAIT G
#else
#define WAIT (G + 1)
#endif

mtype = { NONE, ALIVE, GONE };
mtype = { SUBSCRIBE, ASK, RENEW, RELEASE };
mtype = { DONE, UNSEEN, REFUSED };
mtype = { IDLE, ASKING, HELD };

/* the servers */
#define B 9              /* 0: no one; 1 to TOKS: tokens of A */
byte owner[SERVERS];
byte left[SERVERS];      /* its ttl */
mtype kind[SERVERS];     /* the key beside the lock */
byte of_token[SERVERS];
byte of_run[SERVERS];
byte age[SERVERS];       /* of a mark, by the server's clock */
bool ahead[SERVERS];     /* which has gained its tick since */
byte term[SERVERS];
byte terms = SERVERS;
bool writes[SERVERS];    /* takes itself for the master, and has the slot */
byte master = 0;         /* where B looks */
#define other (SERVERS - 1 - master)

/* the links */
bool mine[LINKS];        /* open on A's side */
bool its[LINKS];         /* and on the server's */
bool hears[LINKS];       /* subscribed there */
byte at[LINKS];
mtype request[LINKS];
mtype answer[LINKS];
byte about[LINKS];       /* the request's token */
byte since[LINKS];       /* ticks ago */

/* A */
mtype phase = IDLE;
byte token = 0;
byte lease = 0;          /* ticks that its deadline is off, and that its last proof lasts */
byte proved = 0;
#ifdef LOSSY
byte newest = 0;         /* the last run that has answered it */
#endif
bool queued;             /* waits at the master */
bool pushed;             /* told that the lock was handed over */
byte asked_ago;          /* ticks since it asked last */
bool unsure;             /* an ask of its token was, or may have been, granted in vain: there may be a note of it */

/* for the laws */
bool broken;             /* a link or subscription has ended since its last grant or renewal */

#ifdef NO_PROOF
#define trusts (phase == HELD && lease > 0)
#else
#define trusts (phase == HELD && lease > 0 && proved > 0)
#endif
#define will_trust(l) (mine[l] && about[l] == token && request[l] != SUBSCRIBE && answer[l] == DONE && rest_of(l, G) > 0)
#define inbox_by(l, s) (its[l] && hears[l] && at[l] == s)
#define inbox(s) (inbox_by(0, s) || inbox_by(LINKS - 1, s))
#define rest_of(l, whole) (whole > since[l] -> whole - since[l] : 0)
#define rest(whole) rest_of(l, whole)
#define most(a, b) (a > b -> a : b)
#define same_token(s) (of_token[s] == owner[s])
#ifdef OTHER_RUN
#define same_run(s) true
#else
#define same_run(s) (of_run[s] == term[s])
#endif

inline write(s, what, tok, r) {
    kind[s] = what; of_token[s] = tok; of_run[s] = r; age[s] = 0; ahead[s] = false
}

/* The server carries out a request of A: a grant or a renewal, where it sees the inbox and may write. */
inline grant(l, s) {
    if
    :: inbox(s) ->
        answer[l] = DONE; owner[s] = about[l]; left[s] = TTL + 1;
        if :: about[l] == token -> broken = false :: else -> skip fi;
#ifdef MARK_STAYS
        if :: kind[s] == GONE && of_token[s] == about[l] && of_run[s] == term[s] -> skip
        :: else -> write(s, ALIVE, about[l], term[s]) fi
#else
        write(s, ALIVE, about[l], term[s])
#endif
    :: else ->
#if defined(BLIND_PROOF) || defined(BLIND_ALIVE)
        answer[l] = DONE; owner[s] = about[l]; left[s] = TTL + 1;
#ifdef BLIND_ALIVE
        if :: about[l] == token -> broken = false :: else -> skip fi;
        write(s, ALIVE, about[l], term[s])
#endif
#else
        answer[l] = UNSEEN
#endif
    fi
}

inline carry_out(l, s) {
#ifdef LOSSY
    newest = most(newest, term[s]);
#endif
    if
    :: request[l] == SUBSCRIBE -> hears[l] = true; answer[l] = DONE
    :: request[l] != SUBSCRIBE && !writes[s] -> answer[l] = UNSEEN
    :: request[l] == ASK && writes[s] && (owner[s] == 0 || owner[s] == about[l]) ->
        if :: about[l] == token && inbox(s) -> queued = false :: else -> skip fi;
        grant(l, s)
    :: request[l] == ASK && writes[s] && owner[s] != 0 && owner[s] != about[l] ->
        answer[l] = REFUSED;
        if :: about[l] == token && phase == ASKING -> queued = true :: else -> skip fi
    :: request[l] == RENEW && writes[s] && owner[s] == about[l] -> grant(l, s)
    :: request[l] == RENEW && writes[s] && owner[s] != about[l] -> answer[l] = REFUSED
    :: request[l] == RELEASE && writes[s] ->
        answer[l] = DONE;
        if :: owner[s] == about[l] -> owner[s] = 0; left[s] = 0 :: else -> skip fi
    fi;
    if :: !mine[l] -> clear(l) :: else -> skip fi
}

inline clear(l) {
    request[l] = NONE; answer[l] = NONE; about[l] = 0; since[l] = 0
}

inline send(l, what) {
    request[l] = what; about[l] = token
}

inline ask(l) {
    send(l, ASK); pushed = false; asked_ago = 0
}

inline forget() {
    phase = IDLE; lease = 0; proved = 0; queued = false; pushed = false; asked_ago = 0; unsure = false
}

inline read(l) {
    if
    :: about[l] == token && request[l] == ASK && phase == ASKING && answer[l] == DONE && rest(TTL) > 0 ->
        phase = HELD; queued = false; pushed = false; asked_ago = 0; unsure = false; lease = rest(TTL); proved = rest(G)
    :: about[l] == token && request[l] == ASK && phase == ASKING && answer[l] == DONE && rest(TTL) == 0 ->
        unsure = true /* too late for a lease */
    :: about[l] == token && request[l] == RENEW && phase == HELD && answer[l] == REFUSED -> forget()
    :: about[l] == token && request[l] == RENEW && phase == HELD && answer[l] == DONE ->
        lease = most(lease, rest(TTL));
#ifdef FROM_ANSWER
        proved = G
#else
        proved = most(proved, rest(G))
#endif
    :: else -> skip
    fi;
    clear(l)
}

#define idle(l) (mine[l] && request[l] == NONE)

proctype Link(byte l) {
end:
    do
    /* A opens it, where nothing of a former one is left */
    :: atomic { !mine[l] && !its[l] ->
        mine[l] = true; its[l] = true;
        if
        :: true -> at[l] = master
#if MOVES > 0
        :: true -> at[l] = other
#elif defined(LOSSY)
        :: writes[other] && term[other] >= newest -> at[l] = other
#endif
        fi }
    /* A closes it, or finds it closed */
    :: atomic { mine[l] ->
        mine[l] = false;
        if :: request[l] == ASK && about[l] == token && phase == ASKING -> unsure = true :: else -> skip fi;
        if
        :: its[l] && request[l] != NONE && answer[l] == NONE -> since[l] = 0
        :: else -> clear(l)
        fi;
        if :: !its[l] -> at[l] = 0 :: else -> skip fi }
    /* the server does, or ends the subscription */
    :: atomic { its[l] ->
        if :: hears[l] -> broken = true :: else -> skip fi;
        if
        :: its[l] = false;
            if :: answer[l] == NONE && !mine[l] -> clear(l) :: else -> skip fi;
            if :: !mine[l] -> at[l] = 0 :: else -> skip fi
        :: hears[l] -> skip
        fi;
        hears[l] = false }
    :: atomic { its[l] && request[l] != NONE && answer[l] == NONE -> carry_out(l, at[l]) }
    /* A sends */
    :: atomic { idle(l) -> send(l, SUBSCRIBE) }
    :: atomic { idle(l) && phase == IDLE && token < TOKS ->
        token++; broken = false; phase = ASKING; ask(l) }
    :: atomic { idle(l) && phase == ASKING -> ask(l) }
    :: atomic { idle(l) && phase == HELD -> send(l, RENEW) }
    :: atomic { idle(l) && phase == HELD -> send(l, RELEASE); forget() }
    /* A reads */
    :: atomic { mine[l] && answer[l] != NONE -> read(l) }
    od
}

#define asks(l) (mine[l] && request[l] == ASK && about[l] == token)
#ifdef STRAY_PUSH
#define stray false
#else
#define stray (unsure || asks(0) || asks(LINKS - 1))
#endif

/* A is told that the lock was handed over, and takes it without asking again: for as long as a claim lasts from its last
 * ask on, which found the lock held, and for no longer than G from now. */
proctype Told() {
end:
    do
    :: atomic { pushed -> pushed = false;
        if
        :: phase == ASKING && !stray && asked_ago < CLAIM ->
            phase = HELD; lease = CLAIM - asked_ago; asked_ago = 0; unsure = false;
#ifdef TRUST_PUSH
            proved = lease
#else
            proved = G
#endif
        :: else -> skip
        fi }
    od
}

#ifdef NO_MARK
#define is_new(s) false
#define is_old(s) true
#else
#define is_new(s) (kind[s] == ALIVE && !inbox(s))
#define is_old(s) (kind[s] == GONE && age[s] >= WAIT)
#endif
/* Look at who holds the lock. Where the inbox has a subscriber, nothing is written: a mark goes on ageing. */
inline look(s) {
    if
    :: kind[s] != NONE && same_token(s) && same_run(s) && is_new(s) -> write(s, GONE, owner[s], term[s])
    :: kind[s] != NONE && same_token(s) && same_run(s) && is_old(s) && !inbox(s) ->
        assert(owner[s] != token || broken && !trusts && !will_trust(0) && !will_trust(LINKS - 1));
        owner[s] = B; left[s] = TTL + 1; write(s, NONE, 0, 0)
    :: else -> skip
    fi
}

proctype Others() {
end:
    do
    :: atomic { owner[master] == 0 -> owner[master] = B; left[master] = TTL + 1 }
    :: atomic { owner[master] == B ->
        if
        :: MAY_PUSH && queued && inbox(master) ->
            owner[master] = token; left[master] = CLAIM; queued = false; pushed = true
        :: else -> owner[master] = 0; left[master] = 0
        fi }
    :: atomic { owner[master] != 0 && owner[master] != B -> look(master) }
    od
}

proctype Time() {
    byte i = 0;
end:
    do
    :: atomic { true ->
        do
        :: i < SERVERS ->
            if :: left[i] > 0 -> left[i]--; if :: left[i] == 0 -> owner[i] = 0 :: else -> skip fi :: else -> skip fi;
            if :: kind[i] == GONE && age[i] < WAIT -> age[i]++ :: else -> skip fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < LINKS ->
            if :: mine[i] && request[i] != NONE && since[i] < TTL -> since[i]++ :: else -> skip fi;
            i++
        :: else -> break
        od;
        i = 0;
        if :: lease > 0 -> lease--; if :: lease == 0 -> forget() :: else -> skip fi :: else -> skip fi;
        if :: proved > 0 -> proved-- :: else -> skip fi;
        if :: phase == ASKING && asked_ago < CLAIM -> asked_ago++ :: else -> skip fi }
    :: atomic { kind[master] == GONE && !ahead[master] && age[master] < WAIT -> age[master]++; ahead[master] = true }
    od
}

#if FAILOVERS + RESTARTS + MOVES > 0
inline copy(from, to) {
    owner[to] = owner[from]; left[to] = left[from]; kind[to] = kind[from]; of_token[to] = of_token[from];
    of_run[to] = of_run[from]; age[to] = age[from]; ahead[to] = ahead[from]
}

inline cut(l) {
    if
    :: its[l] && at[l] == master ->
        if :: hears[l] -> broken = true :: else -> skip fi;
        its[l] = false; hears[l] = false;
        if :: answer[l] == NONE && !mine[l] -> clear(l) :: else -> skip fi;
        if :: !mine[l] -> at[l] = 0 :: else -> skip fi
    :: else -> skip
    fi
}

proctype Fate() {
    byte failovers = FAILOVERS, restarts = RESTARTS, moves = MOVES;
end:
    do
#if RESTARTS > 0
    :: atomic { restarts > 0 -> restarts--; term[master] = terms; terms++; cut(0); cut(LINKS - 1) }
#endif
#if FAILOVERS > 0
#ifdef LOSSY
    /* the copy follows, and the former master once it is told */
    :: atomic { true -> copy(master, other); writes[other] = false }
#endif
    :: atomic { failovers > 0 && !writes[other] -> failovers--;
#ifndef LOSSY
        copy(master, other); writes[master] = false;
#endif
        master = other; writes[master] = true;
#ifndef RUN_ID
        term[master] = terms; terms++
#endif
        }
#endif
#if MOVES > 0
    :: atomic { moves > 0 -> moves--;
        copy(master, other); writes[master] = false; owner[master] = 0; left[master] = 0; write(master, NONE, 0, 0);
        master = other; writes[master] = true }
#endif
    od
}
#endif

#ifndef LOSSY
proctype Law() {
end:
    atomic { trusts && owner[master] == B -> assert(false) }
}
#endif

init {
    byte i = 0;
    atomic {
        writes[0] = true;
        do
        :: i < SERVERS -> term[i] = i; kind[i] = NONE; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < LINKS -> request[i] = NONE; answer[i] = NONE; run Link(i); i++
        :: else -> break
        od;
        i = 0;
        run Others();
        run Time();
#if FAILOVERS + RESTARTS + MOVES > 0
        run Fate();
#endif
        run Told();
#ifndef LOSSY
        run Law()
#endif
    }
}
