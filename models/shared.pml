/* The shared lock: the queue, readers beside each other, writers alone, holders and waiters that die.
 *
 * Each atomic step is one script on the server. P processes: the first W only write, the others only read, again
 * and again. With CRASHES each may die once at any moment; a dead holder's place goes when its time is over, a dead
 * waiter's when it comes to the head of the queue.
 *
 * Laws, with no option: no reader beside a writer, no two writers (asserted); a waiter that lives has its turn in the end
 * (ltl turn, with weak fairness). Options that take one assumption away, each of which has to break one law:
 *   BARGE    readers come in while others read, past the queue: the writer starves
 *   TWOSTEP  looking and taking are two scripts: a reader beside a writer
 *   BLIND    a dead waiter at the head is not passed: a waiter after it waits forever
 *
 *   spin -a shared.pml && cc -O2 -o pan pan.c && ./pan -m100000          (safety)
 *   … && ./pan -m100000 -a -f -N turn                                    (liveness)
 */
#ifndef P
#define P 3
#endif
#ifndef W
#define W 1
#endif

#define NONE 255
#define reads(who) (who >= W)

byte writer = NONE;      /* who writes */
byte readers = 0;        /* how many read */
bool in[P];              /* whose place among the holders lasts */
bool queued[P];
bool dead[P];
chan queue = [P] of { byte };
byte head;

/* Grant from the head of the queue as far as it goes: part of every script that changes anything. */
inline advance() {
    do
    :: queue ? [head] ->
        queue ? <head>;
        if
#ifndef BLIND
        :: dead[head] -> queue ? head; queued[head] = false
#endif
        :: (!dead[head] && reads(head) && writer == NONE) ->
            queue ? head; queued[head] = false; in[head] = true; readers++
        :: (!dead[head] && !reads(head) && writer == NONE && readers == 0) ->
            queue ? head; queued[head] = false; in[head] = true; writer = head
        :: else -> break
        fi
    :: else -> break
    od;
    head = 0
}

inline leave(who) {
    in[who] = false;
    if
    :: reads(who) -> readers--
    :: else -> writer = NONE
    fi
}

proctype Client(byte me) {
    bool free;
    end:
    do
    :: dead[me] -> break
    :: else ->
        /* ask: be granted at once, or queue */
#ifdef TWOSTEP
        atomic { free = (len(queue) == 0 && writer == NONE && (reads(me) || readers == 0)) };
        atomic {
            if
            :: free ->
                in[me] = true;
                if :: reads(me) -> readers++ :: else -> writer = me fi
            :: else -> queue ! me; queued[me] = true; advance()
            fi
        };
#else
        atomic {
#ifdef BARGE
            if
            :: (reads(me) && writer == NONE) -> in[me] = true; readers++
            :: else -> queue ! me; queued[me] = true; advance()
            fi
#else
            queue ! me; queued[me] = true; advance()
#endif
        };
#endif
        /* wait for the grant */
        waiting:
        if
        :: in[me]
        :: dead[me] -> break
        fi;
        inside:
        assert(dead[me] || !reads(me) || writer == NONE);
        assert(dead[me] || reads(me) || (writer == me && readers == 0));
        /* release */
        atomic {
            if
            :: (!dead[me] && in[me]) -> leave(me); advance()
            :: else
            fi
        }
    od
}

#ifdef CRASHES
/* Someone dies; later its time is over, and a waiter that looks for itself lets the queue go on. */
proctype Death(byte who) {
    end_alive:
    if
    :: atomic { true -> dead[who] = true }
    fi;
    end_expiry:
    do
    :: atomic { in[who] -> leave(who); advance() }
    :: atomic { (len(queue) > 0 && !in[who]) -> advance(); break }
    od
}
#endif

init {
    byte who = 0;
    atomic {
        do
        :: who < P -> run Client(who); who++
        :: else -> break
        od;
#ifdef CRASHES
        run Death(P - 1)
#endif
    }
}

/* The first process is a writer that no one kills. */
ltl turn { [] (queued[0] -> <> in[0]) }
