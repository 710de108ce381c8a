/* Threads that meet in one engine: one at a time works, the others are told PS_E_BUSY, and any may cancel or read the counters. Built
   with ThreadSanitizer, so that a race in the lock, the flag or the counters is fatal. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "fixture.h"

enum { N_THREADS = 4, N_CALLS = 3000 };

static atomic_int worked, busy, failed;

static void *work(void *at) {
    fixture *const w = at;
    int32_t text[N_PROMPT];
    write_prompt(text, 0);
    for (int32_t i = 0; i < N_CALLS; i++) {
        int32_t held = 0;
        ps_status status = ps_seq_set(w->engine, 0, text, N_PROMPT, -1, NULL);
        if (status == PS_OK) status = ps_prefill(w->engine, PS_TARGET, 0, N_PROMPT - 1, CHUNK, &held);
        atomic_int *const count = status == PS_OK || status == PS_E_CANCELLED ? &worked : status == PS_E_BUSY ? &busy : &failed;
        atomic_fetch_add(count, 1);
    }
    return NULL;
}

static void *cancel(void *at) {
    fixture *const w = at;
    for (int32_t i = 0; i < N_CALLS; i++) ps_engine_cancel(w->engine, i % 2);
    ps_engine_cancel(w->engine, 0);
    return NULL;
}

static void *count(void *at) {
    fixture *const w = at;
    ps_counters before = {0}, counters;
    for (int32_t i = 0; i < N_CALLS; i++) {
        if (ps_counters_get(w->engine, &counters) != PS_OK || counters.rows[PS_TARGET] < before.rows[PS_TARGET]) {
            atomic_fetch_add(&failed, 1);
        }
        before = counters;
    }
    return NULL;
}

static void test_meeting_threads(void) {
    fixture w = make(0);
    begin(&w);
    pthread_t threads[N_THREADS + 2];
    for (int32_t i = 0; i < N_THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, &w) == 0);
    CHECK(pthread_create(&threads[N_THREADS], NULL, cancel, &w) == 0);
    CHECK(pthread_create(&threads[N_THREADS + 1], NULL, count, &w) == 0);
    for (int32_t i = 0; i <= N_THREADS + 1; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(worked > 0 && worked + busy == N_THREADS * N_CALLS && failed == 0);
    const mode plain = {.length = 0};
    check_answer(&w, 1, &plain); /* the lock is free again */
    end(&w);
}

int main(void) {
    fake_bind();
    RUN(test_meeting_threads);
    return REPORT();
}
