/* When a probe runs, and what its outcomes publish.  The rule is stated in _state_py.py: both
 * forms hold the same table (facts asked, facts wanted, published result, action; the first row that
 * matches decides).  No clock, no allocation, no I/O: the caller brings time and observation. */
#ifndef KUBENGINE_PROBING_STATE_H
#define KUBENGINE_PROBING_STATE_H

#include <stdint.h>

enum probe_type { PROBE_LIVENESS = 0, PROBE_READINESS = 1, PROBE_STARTUP = 2 };
enum probe_result { RESULT_NONE = 0, RESULT_SUCCESS = 1, RESULT_FAILURE = 2, RESULT_UNKNOWN = 3 };
enum probe_outcome {
    OUTCOME_SUCCESS = 0,
    OUTCOME_FAILURE = 1,
    OUTCOME_WARNING = 2,
    OUTCOME_UNKNOWN = 3,
    OUTCOME_ERROR = 4
};
enum probe_action { ACTION_WAIT = 0, ACTION_PROBE = 1, ACTION_END = 2 };
enum container_state { CONTAINER_WAITING = 0, CONTAINER_RUNNING = 1, CONTAINER_TERMINATED = 2 };
enum attempt_verdict { ATTEMPT_RETRY = 0, ATTEMPT_DROPPED = 1, ATTEMPT_COUNTED = 2 };

#define PROBE_ATTEMPTS 3 /* the kubelet's maxProbeRetries, prober.go */

typedef struct {
    uint64_t container; /* the worker's container: a number that names one incarnation, 0 = none yet */
    int64_t initial_delay_ms;
    int32_t failure_threshold;
    int32_t success_threshold;
    int32_t run; /* length of the current run of equal results */
    uint8_t type;
    uint8_t last;      /* result of the current run */
    uint8_t published; /* for the worker's container */
    uint8_t on_hold;
    uint8_t never_restarts; /* nothing restarts the container once it has ended */
    uint8_t attempt;        /* attempts made in this tick */
    uint8_t succeeded;      /* the worker's container has started, or was known to have */
} probe_state;

typedef struct {
    uint64_t container; /* 0 = no status, or a status without an id */
    int64_t started_at_ms;
    uint8_t pod_known;
    uint8_t phase_terminal; /* Failed or Succeeded */
    uint8_t state;          /* enum container_state */
    uint8_t started;
    uint8_t deleted; /* the pod has a deletion time */
} probe_observation;

enum probe_fact {
    FACT_KNOWN = 1,
    FACT_TERMINAL = 2,
    FACT_CONTAINER = 4,
    FACT_HELD = 8,
    FACT_RUNNING = 16,
    FACT_TERMINATED = 32,
    FACT_NEVER_RESTARTS = 64,
    FACT_DELETED = 128,
    FACT_DELAYED = 256,
    FACT_STARTED = 512,
    FACT_READINESS = 1024,
    FACT_STARTUP = 2048
};

typedef struct {
    uint16_t asked, wanted;
    uint8_t adopts; /* a container not seen before becomes the worker's first */
    uint8_t publishes;
    uint8_t action;
} probe_rule;

static const probe_rule PROBE_RULES[] = {
    {FACT_KNOWN, 0, 0, RESULT_NONE, ACTION_WAIT},
    {FACT_TERMINAL, FACT_TERMINAL, 0, RESULT_NONE, ACTION_END},
    {FACT_CONTAINER, 0, 0, RESULT_NONE, ACTION_WAIT},
    {FACT_HELD, FACT_HELD, 1, RESULT_NONE, ACTION_WAIT},
    {FACT_TERMINATED | FACT_NEVER_RESTARTS, FACT_TERMINATED | FACT_NEVER_RESTARTS, 1, RESULT_FAILURE,
     ACTION_END},
    {FACT_RUNNING, 0, 1, RESULT_FAILURE, ACTION_WAIT},
    {FACT_DELETED | FACT_READINESS, FACT_DELETED, 1, RESULT_SUCCESS, ACTION_END},
    {FACT_DELAYED, FACT_DELAYED, 1, RESULT_NONE, ACTION_WAIT},
    {FACT_STARTED | FACT_STARTUP, FACT_STARTED | FACT_STARTUP, 1, RESULT_NONE, ACTION_WAIT},
    {FACT_STARTED | FACT_STARTUP, 0, 1, RESULT_NONE, ACTION_WAIT},
    {0, 0, 1, RESULT_NONE, ACTION_PROBE},
};

static const uint8_t PROBE_INITIAL[] = {RESULT_SUCCESS, RESULT_FAILURE, RESULT_UNKNOWN};

static inline uint16_t probe_facts(const probe_state *s, const probe_observation *seen, int64_t now_ms) {
    int64_t running_ms = now_ms - seen->started_at_ms;
    if (running_ms < 0 && running_ms > -1000) running_ms = 0; /* whole seconds, as the kubelet counts */
    return (uint16_t)((seen->pod_known ? FACT_KNOWN : 0) | (seen->phase_terminal ? FACT_TERMINAL : 0) |
                      (seen->container ? FACT_CONTAINER : 0) |
                      (s->on_hold && s->container == seen->container ? FACT_HELD : 0) |
                      (seen->state == CONTAINER_RUNNING ? FACT_RUNNING : 0) |
                      (seen->state == CONTAINER_TERMINATED ? FACT_TERMINATED : 0) |
                      (s->never_restarts ? FACT_NEVER_RESTARTS : 0) | (seen->deleted ? FACT_DELETED : 0) |
                      (running_ms < s->initial_delay_ms ? FACT_DELAYED : 0) |
                      (seen->started ? FACT_STARTED : 0) | (s->type == PROBE_READINESS ? FACT_READINESS : 0) |
                      (s->type == PROBE_STARTUP ? FACT_STARTUP : 0));
}

/* Publish into updates (room for one more) when the value differs; returns how many were added. */
static inline int probe_publish(probe_state *s, uint8_t result, uint8_t *updates) {
    if (s->published == result) return 0;
    s->published = result;
    if (result == RESULT_SUCCESS) s->succeeded = 1;
    updates[0] = result;
    return 1;
}

/* One tick.  At most two results are published into updates[2]; *count says how many.  `initial` is
 * the result that a new container starts with. */
static inline uint8_t probe_tick(probe_state *s, const probe_observation *seen, int64_t now_ms,
                                 uint8_t initial, uint8_t updates[2], int *count) {
    uint16_t facts = probe_facts(s, seen, now_ms);
    const probe_rule *rule = PROBE_RULES;
    while ((facts & rule->asked) != rule->wanted) rule++;
    *count = 0;
    if (rule->adopts && s->container != seen->container) {
        s->container = seen->container;
        s->published = RESULT_NONE;
        s->on_hold = s->succeeded = 0;
        *count += probe_publish(s, initial, updates);
    }
    if (rule->publishes != RESULT_NONE) *count += probe_publish(s, rule->publishes, updates + *count);
    s->attempt = 0;
    return rule->action;
}

/* Whether a running container still needs its first success to become started or ready. */
static inline int probe_is_starting(const probe_state *s, const probe_observation *seen) {
    if (s->type == PROBE_LIVENESS || (s->type == PROBE_STARTUP) == (seen->started != 0)) return 0;
    if (!seen->container || seen->state != CONTAINER_RUNNING || seen->deleted || seen->phase_terminal)
        return 0;
    return s->container != seen->container || !(s->succeeded || s->on_hold);
}

/* Record the outcome of one attempt of a tick.  Publishes at most one result. */
static inline uint8_t probe_finish(probe_state *s, uint8_t outcome, uint8_t updates[2], int *count) {
    uint8_t result;
    int32_t threshold;
    *count = 0;
    s->attempt++;
    if (outcome == OUTCOME_ERROR) return s->attempt < PROBE_ATTEMPTS ? ATTEMPT_RETRY : ATTEMPT_DROPPED;
    result = outcome == OUTCOME_SUCCESS || outcome == OUTCOME_WARNING ? RESULT_SUCCESS : RESULT_FAILURE;
    s->run = s->last == result ? (s->run < INT32_MAX ? s->run + 1 : s->run) : 1;
    s->last = result;
    threshold = result == RESULT_FAILURE ? s->failure_threshold : s->success_threshold;
    if (s->run < threshold) return ATTEMPT_COUNTED;
    *count = probe_publish(s, result, updates);
    if (s->type == PROBE_STARTUP || (s->type == PROBE_LIVENESS && result == RESULT_FAILURE)) {
        s->on_hold = 1;
        s->run = 0;
    }
    return ATTEMPT_COUNTED;
}

#endif
