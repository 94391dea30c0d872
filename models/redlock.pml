/* The lock over a quorum: three members, two clients, fencing tokens written back to a majority that holds us.
 *
 * Checked: no two clients are inside at once; every token handed out is greater than all before.
 * Time is abstract: a lease's validity ends at any moment, its client leaves in that moment (it looks at its deadline),
 * and a member forgets it at some time after that, which is what drift allowance and the send-time deadline give.
 * Any request may fail to reach a member, members restart without their locks and do not vote before all leases that
 * were valid then have ended. (They keep their tokens here: those are seeded by the clock.)
 *
 * Broken on purpose, each must fail:
 *   -DNO_WRITE_BACK   the greatest token of the votes is handed out, and no majority told of it
 *   -DVOTE_AT_ONCE    a restarted member votes at once (with -DRESTARTS=1)
 *   -DNO_DEADLINE     a client stays inside when its validity has ended
 *   -DONE_IS_ENOUGH   a single vote gives the lock
 */
#define N 3
#define CLIENTS 2
#define NEED 2
#ifdef ONE_IS_ENOUGH
#define VOTES 1
#else
#define VOTES NEED
#endif

#define TOKENS 3 /* one for each client; 0 is no one */

byte owner[N];
byte fence[N] = { 3, 0, 1 }; /* the members' clocks differ */
bool valid[TOKENS];  /* the lease, or what is asked for, has not run out */
bool inside[TOKENS];
byte waits_for[N];   /* a restarted member votes when these (a bit for each token) have ended */
#ifndef RESTARTS
#define RESTARTS 0
#endif
byte restarts = RESTARTS; /* how many may happen */
byte holders;
byte last;

active proctype Time() {
    byte m;
end:
    do
    :: atomic { valid[1] -> valid[1] = false;
#ifndef NO_DEADLINE
        if :: inside[1] -> inside[1] = false; holders-- :: else fi;
#endif
        }
    :: atomic { valid[2] -> valid[2] = false;
#ifndef NO_DEADLINE
        if :: inside[2] -> inside[2] = false; holders-- :: else fi;
#endif
        }
    :: atomic { owner[0] != 0 && !valid[owner[0]] -> owner[0] = 0 }
    :: atomic { owner[1] != 0 && !valid[owner[1]] -> owner[1] = 0 }
    :: atomic { owner[2] != 0 && !valid[owner[2]] -> owner[2] = 0 }
    :: atomic { restarts > 0 ->
        restarts--;
        if :: m = 0 :: m = 1 :: m = 2 fi;
        owner[m] = 0;
#ifndef VOTE_AT_ONCE
        waits_for[m] = valid[1] * 2 + valid[2] * 4;
#endif
        m = 0 }
    :: atomic { waits_for[0] != 0 && (waits_for[0] & (valid[1] * 2 + valid[2] * 4)) == 0
        -> waits_for[0] = 0 }
    :: atomic { waits_for[1] != 0 && (waits_for[1] & (valid[1] * 2 + valid[2] * 4)) == 0
        -> waits_for[1] = 0 }
    :: atomic { waits_for[2] != 0 && (waits_for[2] & (valid[1] * 2 + valid[2] * 4)) == 0
        -> waits_for[2] = 0 }
    od
}

active [CLIENTS] proctype Client() {
    byte token, m, votes, greatest, written, voted;
    token = _pid;
    valid[token] = true;
    for (m : 0 .. N - 1) {
        if
        :: atomic { owner[m] == 0 && waits_for[m] == 0 ->
            owner[m] = token; fence[m]++;
            votes++; voted = voted | (1 << m);
            if :: fence[m] > greatest -> greatest = fence[m] :: else fi }
        :: skip
        fi
    }
    if
    :: votes >= VOTES ->
#ifndef NO_WRITE_BACK
        for (m : 0 .. N - 1) {
            if
            :: atomic { (voted & (1 << m)) != 0 && owner[m] == token ->
                if :: fence[m] < greatest -> fence[m] = greatest :: else fi;
                written++ }
            :: skip
            fi
        }
#else
        written = NEED;
#endif
        if
        :: atomic { written >= VOTES && valid[token] ->
            assert(greatest > last); last = greatest;
            inside[token] = true; holders++;
            assert(holders <= 1) }
            if
            :: atomic { inside[token] -> inside[token] = false; holders-- } /* it leaves by itself */
            :: !inside[token]                                               /* its time was over */
            fi
        :: else
        fi
    :: else
    fi;
    /* Released, or given back; what does not arrive runs out. */
    for (m : 0 .. N - 1) {
        if
        :: atomic { owner[m] == token -> owner[m] = 0 }
        :: skip
        fi
    }
    valid[token] = false
}
