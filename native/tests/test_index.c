/* The index of texts: what it says is what a search through the texts says, and it survives each allocation that fails. */
#include <stdlib.h>
#include <string.h>

#include "../pyspec.h"
#include "check.h"
#include "refuse.h"

enum { N = 400, LEAST = 2, LIMIT = 12 };

static void write_text(int32_t *text, int32_t n, int32_t kinds, uint32_t seed) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        text[i] = (int32_t)((seed >> 16) % (uint32_t)kinds);
    }
}

/* The token that follows the longest end of text[0..n) that was followed by anything, and that end's length. */
static int32_t slow_next(const int32_t *known, int32_t n_known, const int32_t *text, int32_t n, int32_t *match) {
    for (int32_t length = n < n_known ? n : n_known - 1; length >= LEAST; length--) {
        int32_t counts[8] = {0}, last[8] = {0}, best = -1;
        for (int32_t end = length; end < n_known; end++) {
            if (memcmp(known + end - length, text + n - length, (size_t)length * sizeof *known)) continue;
            counts[known[end]]++;
            last[known[end]] = end;
        }
        for (int32_t k = 0; k < 8; k++) {
            if (!counts[k]) continue;
            if (best < 0 || counts[k] > counts[best] || (counts[k] == counts[best] && last[k] > last[best])) best = k;
        }
        if (best >= 0) {
            *match = length;
            return best;
        }
    }
    return -1;
}

static void test_next_is_the_slow_twins(void) {
    for (int32_t kinds = 2; kinds <= 8; kinds += 2) {
        int32_t text[N + LIMIT], place = PS_INDEX_EMPTY;
        write_text(text, N, kinds, (uint32_t)kinds);
        ps_index *index;
        CHECK(ps_index_open(&index) == PS_OK);
        for (int32_t n = 1; n <= N; n++) {
            CHECK(ps_index_add(index, text + n - 1, 1, &place) == PS_OK);
            if (n % 7) continue;
            int32_t drafted[LIMIT], grown[N + LIMIT], match = 0, first = 0;
            ps_found found;
            CHECK(ps_index_next(index, place, n, LEAST, LIMIT, drafted, &found) == PS_OK);
            memcpy(grown, text, (size_t)n * sizeof *text);
            for (int32_t i = 0; i < LIMIT; i++) {
                const int32_t wanted = slow_next(text, n, grown, n + i, &match);
                if (i == 0) first = match;
                CHECK(wanted < 0 ? found.n == i : i < found.n && drafted[i] == wanted);
                if (wanted < 0) break;
                grown[n + i] = wanted;
            }
            CHECK(!found.n || found.match == first);
        }
        ps_index_close(index);
    }
}

static void test_same_beginnings_cost_nothing(void) {
    int32_t text[N], place = PS_INDEX_EMPTY, again = PS_INDEX_EMPTY;
    int64_t n_tokens, bytes, later, n_later;
    write_text(text, N, 100, 3);
    ps_index *index;
    CHECK(ps_index_open(&index) == PS_OK);
    CHECK(ps_index_add(index, text, N, &place) == PS_OK);
    CHECK(ps_index_size(index, &n_tokens, &bytes) == PS_OK && n_tokens == N);
    for (int32_t i = 0; i < 5; i++) {
        again = PS_INDEX_EMPTY;
        CHECK(ps_index_add(index, text, N, &again) == PS_OK && again == place);
    }
    again = PS_INDEX_EMPTY;
    CHECK(ps_index_add(index, text, 2, &again) == PS_OK);
    place = PS_INDEX_EMPTY;
    CHECK(ps_index_add(index, text, 2, &place) == PS_OK && again == place);
    CHECK(ps_index_size(index, &n_later, &later) == PS_OK && n_later == N && later == bytes);
    ps_index_close(index);
}

static void test_one_token_for_ever(void) {
    int32_t *const text = calloc(60000, sizeof *text), place = PS_INDEX_EMPTY, drafted[LIMIT];
    ps_index *index;
    ps_found found;
    CHECK(ps_index_open(&index) == PS_OK);
    CHECK(ps_index_add(index, text, 60000, &place) == PS_OK);
    CHECK(ps_index_next(index, place, 60000, LEAST, LIMIT, drafted, &found) == PS_OK && found.n == LIMIT);
    ps_index_close(index);
    free(text);
}

static void test_failing_allocations(void) {
    int32_t text[N];
    write_text(text, N, 4, 5);
    ps_status status = PS_E_NOMEM;
    for (int64_t k = 0; status != PS_OK; k++) {
        ps_index *index = NULL;
        int32_t place = PS_INDEX_EMPTY;
        refuse_allocation(k);
        status = ps_index_open(&index);
        const int opened = status == PS_OK;
        if (opened) status = ps_index_add(index, text, N, &place);
        refuse_allocation(-1);
        CHECK(status == PS_OK || status == PS_E_NOMEM);
        place = PS_INDEX_EMPTY;
        CHECK(!opened || ps_index_add(index, text, N, &place) == PS_OK);
        ps_index_close(index);
    }
}

static void test_arguments(void) {
    const int32_t token = 1, wrong = -1;
    int32_t place = PS_INDEX_EMPTY, far = 99;
    int64_t a, b;
    ps_found found;
    ps_index *index;
    CHECK(ps_index_open(NULL) == PS_E_ARG && ps_index_open(&index) == PS_OK);
    CHECK(ps_index_add(index, &wrong, 1, &place) == PS_E_ARG && ps_index_add(index, &token, 1, &far) == PS_E_ARG);
    CHECK(ps_index_add(index, NULL, 1, &place) == PS_E_ARG && ps_index_add(NULL, &token, 1, &place) == PS_E_ARG);
    CHECK(ps_index_next(index, far, 1, 1, 0, NULL, &found) == PS_E_ARG && ps_index_next(index, 1, 1, 0, 0, NULL, &found) == PS_E_ARG);
    CHECK(ps_index_next(index, 1, 1, 1, 1, NULL, &found) == PS_E_ARG && ps_index_next(index, 1, 0, 1, 0, NULL, &found) == PS_OK);
    CHECK(ps_index_size(index, &a, NULL) == PS_E_ARG && ps_index_size(index, &a, &b) == PS_OK && a == 0);
    ps_index_close(index);
    ps_index_close(NULL);
}

int main(void) {
    RUN(test_next_is_the_slow_twins);
    RUN(test_same_beginnings_cost_nothing);
    RUN(test_one_token_for_ever);
    RUN(test_failing_allocations);
    RUN(test_arguments);
    return REPORT();
}
