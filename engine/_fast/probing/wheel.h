/* A hierarchical timer wheel of one-millisecond ticks: arm and cancel in constant time, whatever the
 * number of timers.  The first level has a slot per tick for the next 1024, three more levels of 64 slots
 * reach 74 hours; later timers wait in the last slot and are filed again.  wheel_twin.py states
 * the rule. */
#ifndef KUBENGINE_PROBING_WHEEL_H
#define KUBENGINE_PROBING_WHEEL_H

#include <stdint.h>
#include <string.h>

#define WHEEL_FIRST_BITS 10
#define WHEEL_NEXT_BITS 6
#define WHEEL_FIRST (1u << WHEEL_FIRST_BITS)
#define WHEEL_NEXT (1u << WHEEL_NEXT_BITS)
#define WHEEL_LEVELS 4
#define WHEEL_SLOTS (WHEEL_FIRST + 3 * WHEEL_NEXT)
#define WHEEL_REACH ((uint64_t)1 << (WHEEL_FIRST_BITS + 3 * WHEEL_NEXT_BITS))
#define WHEEL_NEVER UINT64_MAX

typedef struct timer {
    struct timer *next, **link; /* the pointer that points here; NULL when not armed */
    uint64_t expires;           /* tick */
    uint16_t slot;
    uint16_t kind; /* the owner's */
} timer;

typedef struct {
    uint64_t now; /* the last tick that was run */
    uint64_t armed;
    timer *due; /* expired, to be taken */
    timer *slots[WHEEL_SLOTS];
    uint64_t used[WHEEL_FIRST / 64]; /* which slots of the first level are not empty */
} timer_wheel;

static inline void wheel_init(timer_wheel *w, uint64_t now) {
    memset(w, 0, sizeof *w);
    w->now = now;
}

static inline void wheel_push(timer **head, timer *t) {
    t->next = *head;
    t->link = head;
    if (*head) (*head)->link = &t->next;
    *head = t;
}

static inline void wheel_unlink(timer_wheel *w, timer *t) {
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    t->link = 0;
    if (t->slot < WHEEL_FIRST && !w->slots[t->slot])
        w->used[t->slot / 64] &= ~((uint64_t)1 << (t->slot % 64));
}

static inline void wheel_file(timer_wheel *w, timer *t) {
    uint64_t at = t->expires > w->now ? t->expires : w->now + 1, away = at - w->now;
    uint32_t shift = WHEEL_FIRST_BITS, base = WHEEL_FIRST;
    if (away < WHEEL_FIRST) {
        t->slot = (uint16_t)(at & (WHEEL_FIRST - 1));
        w->used[t->slot / 64] |= (uint64_t)1 << (t->slot % 64);
    } else {
        if (away >= WHEEL_REACH) {
            at = w->now + WHEEL_REACH - 1;
            away = WHEEL_REACH - 1;
        }
        while (away >> (shift + WHEEL_NEXT_BITS)) {
            shift += WHEEL_NEXT_BITS;
            base += WHEEL_NEXT;
        }
        t->slot = (uint16_t)(base + ((at >> shift) & (WHEEL_NEXT - 1)));
    }
    wheel_push(&w->slots[t->slot], t);
}

static inline void timer_cancel(timer_wheel *w, timer *t) {
    if (!t->link) return;
    wheel_unlink(w, t);
    w->armed--;
}

/* Arm (or move) a timer; one that is not in the future expires at the next tick. */
static inline void timer_arm(timer_wheel *w, timer *t, uint64_t expires) {
    timer_cancel(w, t);
    t->expires = expires;
    wheel_file(w, t);
    w->armed++;
}

/* The next tick to wake up at: never later than the earliest timer, at most 1024 ticks earlier. */
static inline uint64_t wheel_next(const timer_wheel *w) {
    uint64_t turn = (w->now | (WHEEL_FIRST - 1)) + 1; /* upper levels are filed again here */
    uint32_t i, start = (uint32_t)((w->now + 1) & (WHEEL_FIRST - 1));
    if (!w->armed) return WHEEL_NEVER;
    for (i = 0; i <= WHEEL_FIRST / 64; i++) {
        uint32_t word = (start / 64 + i) % (WHEEL_FIRST / 64);
        uint64_t bits = w->used[word];
        if (i == 0) bits &= ~(uint64_t)0 << (start % 64);
        if (i == WHEEL_FIRST / 64) bits &= ((uint64_t)1 << (start % 64)) - 1;
        if (bits) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
            uint64_t at = w->now + 1 + ((slot - start) & (WHEEL_FIRST - 1));
            return at < turn ? at : turn;
        }
    }
    return turn;
}

/* Run the wheel to `now`.  Expired timers are then taken one by one with wheel_take. */
static inline void wheel_advance(timer_wheel *w, uint64_t now) {
    while (w->now < now) {
        uint64_t next = wheel_next(w);
        timer **slot;
        if (next > now) {
            w->now = now;
            return;
        }
        w->now = next;
        if ((next & (WHEEL_FIRST - 1)) == 0) {
            uint32_t shift = WHEEL_FIRST_BITS, base = WHEEL_FIRST, level;
            for (level = 1; level < WHEEL_LEVELS; level++) {
                uint32_t index = (uint32_t)((next >> shift) & (WHEEL_NEXT - 1));
                timer *t = w->slots[base + index];
                w->slots[base + index] = 0;
                while (t) {
                    timer *following = t->next;
                    if (t->expires <= next) {
                        t->slot = UINT16_MAX;
                        wheel_push(&w->due, t);
                    } else
                        wheel_file(w, t);
                    t = following;
                }
                if (index != 0) break;
                shift += WHEEL_NEXT_BITS;
                base += WHEEL_NEXT;
            }
        }
        slot = &w->slots[next & (WHEEL_FIRST - 1)];
        while (*slot) {
            timer *t = *slot;
            wheel_unlink(w, t);
            t->slot = UINT16_MAX;
            wheel_push(&w->due, t);
        }
    }
}

static inline timer *wheel_take(timer_wheel *w) {
    timer *t = w->due;
    if (t) {
        wheel_unlink(w, t);
        w->armed--;
    }
    return t;
}

#endif
