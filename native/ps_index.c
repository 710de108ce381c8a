/*
 * Earlier texts and what followed them: a suffix automaton of many texts (Blumer et al. 1985; online for several growing texts,
 * Takagi et al. 2016), with counts of its strings, for drafts by frequency (SuffixDecoding, arXiv 2411.04975).
 *
 * The texts form a tree: a text that begins like another shares its states, counted once. Each begins with a mark, so the state
 * of a whole text stands for nothing else and is never split. An edge's token is that of the state it leads to. Edges are found
 * in a hash table and also listed by state, since a state that is split gives its edges to the new one.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "pyspec.h"

enum { ROOT = 0, START = PS_INDEX_EMPTY, NONE = -1, MARK = -1 };
enum { MAX_STATES = 1 << 29, FIRST_ROOM = 64 };

/*
 * States on the way to the root whose counts a token changes. In a text of one repeated token there are as many as tokens, and
 * the deepest ones are enough.
 */
enum { DEEPEST = 64 };

typedef struct state {
    int32_t length; /* of its longest string */
    int32_t link;   /* the state of the longest suffix that also ends elsewhere */
    int32_t count;  /* places where its strings end */
    int32_t best;   /* where the most frequent continuation leads, the newest among equals; NONE at an end */
    int32_t edge;   /* its newest edge, NONE if it has none */
    int32_t token;  /* the last token of its strings */
} state;

typedef struct edge {
    int32_t from, to;
    int32_t next; /* edge of the same state */
} edge;

struct ps_index {
    state *states;
    edge *edges;
    int32_t *slots; /* edges by hash, NONE where free */
    int32_t n_states, n_edges, n_tokens;
    int32_t room_states, room_edges;
    uint32_t n_slots; /* a power of two */
};

/* ------------------------------------------------------------------ edges */

static uint32_t slot_of(const ps_index *index, int32_t from, int32_t token) {
    uint64_t x = ((uint64_t)(uint32_t)from << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    return (uint32_t)(x * 0xBF58476D1CE4E5B9u >> 32) & (index->n_slots - 1);
}

/* The slot that has the edge, or the free one where it belongs. */
static int32_t *find_slot(const ps_index *index, int32_t from, int32_t token) {
    for (uint32_t at = slot_of(index, from, token);; at = (at + 1) & (index->n_slots - 1)) {
        const int32_t found = index->slots[at];
        if (found == NONE) return &index->slots[at];
        const edge *const e = &index->edges[found];
        if (e->from == from && index->states[e->to].token == token) return &index->slots[at];
    }
}

/* Where the edge leads, NONE if there is none. */
static int32_t go(const ps_index *index, int32_t from, int32_t token) {
    const int32_t found = *find_slot(index, from, token);
    return found == NONE ? NONE : index->edges[found].to;
}

static void add_edge(ps_index *index, int32_t from, int32_t to) {
    const int32_t made = index->n_edges++;
    *find_slot(index, from, index->states[to].token) = made;
    index->edges[made] = (edge){from, to, index->states[from].edge};
    index->states[from].edge = made;
}

/* ------------------------------------------------------------------- room */

/* Room for `wanted` things; grows by half, so that growing stays cheap. */
static ps_status widen(void **things, int32_t *room, int32_t wanted, size_t size) {
    if (wanted <= *room) return PS_OK;
    int32_t more = *room + *room / 2;
    more = more < wanted ? wanted : more;
    void *const made = realloc(*things, (size_t)more * size);
    if (!made) return PS_E_NOMEM;
    *things = made;
    *room = more;
    return PS_OK;
}

/* Slots for this many edges, at most three quarters of them taken. */
static ps_status widen_slots(ps_index *index, int32_t n_edges) {
    uint32_t wanted = index->n_slots ? index->n_slots : 2 * FIRST_ROOM;
    while ((uint64_t)n_edges * 4 > (uint64_t)wanted * 3) wanted *= 2;
    if (wanted == index->n_slots) return PS_OK;
    int32_t *const made = malloc((size_t)wanted * sizeof *made);
    if (!made) return PS_E_NOMEM;
    memset(made, 0xff, (size_t)wanted * sizeof *made); /* NONE */
    free(index->slots);
    index->slots = made;
    index->n_slots = wanted;
    for (int32_t i = 0; i < index->n_edges; i++) {
        *find_slot(index, index->edges[i].from, index->states[index->edges[i].to].token) = i;
    }
    return PS_OK;
}

static ps_status make_room(ps_index *index, int32_t n_states, int32_t n_edges) {
    if (n_states > MAX_STATES - index->n_states || n_edges > 2 * MAX_STATES - index->n_edges) return PS_E_NOMEM;
    ps_status status = widen((void **)&index->states, &index->room_states, index->n_states + n_states, sizeof(state));
    if (status == PS_OK) status = widen((void **)&index->edges, &index->room_edges, index->n_edges + n_edges, sizeof(edge));
    return status == PS_OK ? widen_slots(index, index->n_edges + n_edges) : status;
}

/* ---------------------------------------------------------------- growing */

static int32_t new_state(ps_index *index, int32_t length, int32_t token) {
    index->states[index->n_states] = (state){length, ROOT, 0, NONE, NONE, token};
    return index->n_states++;
}

/*
 * How many edges a token needs after `place`: one for each state that has no edge for it, and those of a state that is split,
 * which may be one of the former.
 */
static int32_t edges_needed(const ps_index *index, int32_t place, int32_t token) {
    const state *const states = index->states;
    int32_t n = 0, walk = place, next = NONE;
    for (; walk != NONE && (next = go(index, walk, token)) == NONE; walk = states[walk].link) n++;
    if (walk == NONE || states[walk].length + 1 == states[next].length) return n;
    for (int32_t e = states[next].edge; e != NONE; e = index->edges[e].next) n++;
    return n + 1;
}

/* Give the shorter strings of `known`, those that end the text at `walk`, a state of their own. */
static int32_t split(ps_index *index, int32_t known, int32_t walk) {
    state *const states = index->states;
    const int32_t token = states[known].token;
    const int32_t made = new_state(index, states[walk].length + 1, token);
    states[made].count = states[known].count;
    states[made].link = states[known].link;
    states[made].best = states[known].best;
    for (int32_t e = states[known].edge; e != NONE; e = index->edges[e].next) add_edge(index, made, index->edges[e].to);
    states[known].link = made;
    for (; walk != NONE; walk = states[walk].link) {
        const int32_t found = *find_slot(index, walk, token);
        if (index->edges[found].to != known) break;
        index->edges[found].to = made;
        if (states[walk].best == known) states[walk].best = made;
    }
    return made;
}

/* Make a state for the text at `place` and one more token; there must be room. */
static int32_t extend(ps_index *index, int32_t place, int32_t token) {
    state *const states = index->states;
    const int32_t made = new_state(index, states[place].length + 1, token);
    int32_t walk = place, known = NONE;
    for (; walk != NONE && (known = go(index, walk, token)) == NONE; walk = states[walk].link) {
        add_edge(index, walk, made);
    }
    if (walk == NONE) return made;
    const bool whole = states[walk].length + 1 == states[known].length;
    const int32_t link = whole ? known : split(index, known, walk);
    states[made].link = link;
    return made;
}

/* Count that the token leading to `made` followed the text at `place`. */
static void count(ps_index *index, int32_t place, int32_t made) {
    state *const states = index->states;
    int32_t to = made;
    for (int32_t i = 0; i < DEEPEST && to != ROOT; i++, to = states[to].link) states[to].count++;
    to = made;
    for (int32_t i = 0; i < DEEPEST && place != NONE; i++, place = states[place].link) {
        while (states[states[to].link].length > states[place].length) to = states[to].link;
        const int32_t best = states[place].best;
        if (best == NONE || states[to].count >= states[best].count) states[place].best = to;
    }
}

/* -------------------------------------------------------------- interface */

ps_status ps_index_open(ps_index **out) {
    if (!out) return PS_E_ARG;
    ps_index *const index = calloc(1, sizeof *index);
    if (!index) return PS_E_NOMEM;
    const ps_status status = make_room(index, FIRST_ROOM, FIRST_ROOM);
    if (status != PS_OK) {
        ps_index_close(index);
        return status;
    }
    index->states[new_state(index, 0, MARK)].link = NONE;
    add_edge(index, ROOT, new_state(index, 1, MARK));
    *out = index;
    return PS_OK;
}

void ps_index_close(ps_index *index) {
    if (!index) return;
    free(index->states);
    free(index->edges);
    free(index->slots);
    free(index);
}

static bool is_place(const ps_index *index, int32_t place) { return place >= START && place < index->n_states; }

ps_status ps_index_add(ps_index *index, const int32_t *tokens, int32_t n, int32_t *place) {
    if (!index || n < 0 || (n > 0 && !tokens) || !place || !is_place(index, *place)) return PS_E_ARG;
    for (int32_t i = 0; i < n; i++) {
        if (tokens[i] < 0) return PS_E_ARG;
        int32_t next = go(index, *place, tokens[i]);
        if (next == NONE) {
            const ps_status status = make_room(index, 2, edges_needed(index, *place, tokens[i]));
            if (status != PS_OK) return status;
            next = extend(index, *place, tokens[i]);
            count(index, *place, next);
            index->n_tokens++;
        }
        *place = next;
    }
    return PS_OK;
}

/* The longest end of what led to `at` that was ever continued, if it has `least` tokens. */
static int32_t shorter(const state *states, int32_t at, int32_t least) {
    do at = states[at].link;
    while (at != NONE && states[at].best == NONE);
    return at == NONE || states[at].length < least ? NONE : at;
}

ps_status ps_index_next(const ps_index *index, int32_t place, int32_t length, int32_t least, int32_t limit, int32_t *tokens,
                        ps_found *out) {
    if (!index || place < ROOT || place >= index->n_states || length < 0 || least < 1 || limit < 0) return PS_E_ARG;
    if ((limit > 0 && !tokens) || !out) return PS_E_ARG;
    const state *const states = index->states;
    *out = (ps_found){0};
    const bool all = length >= least && states[place].best != NONE;
    int32_t at = all ? place : shorter(states, place, least);
    if (at == NONE) return PS_OK;
    out->match = all ? length : states[at].length;
    while (out->n < limit && at != NONE) {
        at = states[at].best;
        tokens[out->n++] = states[at].token;
        if (states[at].best == NONE) at = shorter(states, at, least);
    }
    return PS_OK;
}

ps_status ps_index_size(const ps_index *index, int64_t *n_tokens, int64_t *n_bytes) {
    if (!index || !n_tokens || !n_bytes) return PS_E_ARG;
    *n_tokens = index->n_tokens;
    *n_bytes = (int64_t)sizeof *index + (int64_t)index->room_states * (int64_t)sizeof(state);
    *n_bytes += (int64_t)index->room_edges * (int64_t)sizeof(edge) + (int64_t)index->n_slots * (int64_t)sizeof(int32_t);
    return PS_OK;
}
