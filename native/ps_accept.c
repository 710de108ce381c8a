/* Accepting a verified draft: the rule row by row, then one committed position for every KV. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps_internal.h"
#include "ps_kernel.h"

/* One verify under acceptance. */
typedef struct trial {
    ps_engine *engine;
    ps_seq *seq;
    struct llama_sampler *sampler; /* NULL: argmax */
    const ps_gate *gate;
    ps_gate_state *state;
    ps_verdict *out;
    struct llama_token_data_array force; /* what the sampler chain left of the row */
} trial;

static const ps_gate STRICT = {.theta = 1.0f}; /* a closed gate */

static bool special(const ps_engine *engine, int32_t token) {
    const struct llama_vocab *const vocab = engine->role[PS_TARGET].vocab;
    return ps_api.vocab_is_eog(vocab, token) || ps_api.vocab_is_control(vocab, token);
}

/* Apply the target's sampler chain to a row. It sees every raw logit, or where it keeps a few of them first, all that may be. */
static ps_status apply_chain(trial *t, const float *row) {
    ps_engine *const engine = t->engine;
    const int32_t n_vocab = engine->n_vocab, level = ps_simd();
    if (!engine->candidates) engine->candidates = malloc((size_t)n_vocab * sizeof *engine->candidates);
    PS_FAIL_UNLESS(engine->candidates, PS_E_NOMEM);
    const float least = ps_scan_least(row, n_vocab, t->seq->coupling.top_k, level);
    size_t found = 0;
    for (int32_t i = 0, end; i < n_vocab; i = end) {
        end = n_vocab - i < PS_STRETCH ? n_vocab : i + PS_STRETCH;
        if (ps_scan_max(row + i, end - i, level) < least) continue;
        for (int32_t id = i; id < end; id++) {
            if (row[id] >= least) engine->candidates[found++] = (struct llama_token_data){.id = id, .logit = row[id], .p = 0.0f};
        }
    }
    t->force = (struct llama_token_data_array){engine->candidates, found, -1, false};
    ps_api.sampler_apply(t->sampler, &t->force);
    return PS_OK;
}

/* The chain's choice. */
static ps_status sample(trial *t, const float *row, int32_t *chosen) {
    PS_TRY(apply_chain(t, row));
    PS_FAIL_IF(t->force.selected < 0 || (size_t)t->force.selected >= t->force.size, PS_E_SAMPLER);
    const struct llama_token_data found = t->force.data[t->force.selected];
    PS_FAIL_IF(found.id < 0 || found.id >= t->engine->n_vocab, PS_E_SAMPLER);
    /* a grammar that allows nothing leaves no logit; accepting one of its tokens would throw an exception through this C code */
    PS_FAIL_UNLESS(found.logit > -INFINITY, PS_E_SAMPLER);
    *chosen = found.id;
    return PS_OK;
}

/* Draw at row i from what the chain left: the argmax with noise. *found, the scanned row, becomes the row with its noise. */
static ps_status draw(trial *t, int32_t i, const float *row, ps_row *found) {
    ps_coupling how = t->seq->coupling;
    ps_race race = ps_race_begin(&how, t->seq->n + i);
    how.min_p = 0; /* the chain truncates */
    if (!t->sampler) ps_race_row(&race, row, t->engine->n_vocab, &how, found);
    else PS_TRY(apply_chain(t, row));
    for (size_t k = 0; t->sampler && k < t->force.size; k++) ps_race_enter(&race, t->force.data[k].id, (double)t->force.data[k].logit);
    PS_FAIL_IF(race.first < 0 || race.first >= t->engine->n_vocab, PS_E_SAMPLER);
    *found = ps_race_result(&race, &how);
    return PS_OK;
}

/* The target's choice at row i, and the row that the rule judges by: with noise if there is noise. */
static ps_status choose(trial *t, int32_t i, const float *row, ps_row *found, int32_t *chosen) {
    PS_TRY(ps_scan(row, t->engine->n_vocab, PS_SCAN_TOP2, found));
    if (ps_coupled(t->seq)) PS_TRY(draw(t, i, row, found));
    *chosen = found->first;
    return t->sampler && !ps_coupled(t->seq) ? sample(t, row, chosen) : PS_OK;
}

/* How far the second is behind the first, in nats, in the distribution sampled from; INFINITY if one was truncated. *missing
 * is -log of the first's probability: what it costs to take the first whatever was drawn. */
static float gap_in_force(const trial *t, const ps_row *row, float *missing) {
    *missing = 0;
    if (ps_coupled(t->seq)) return (row->z1 - row->z2) / t->seq->coupling.temperature;
    if (!t->sampler) return row->z1 - row->z2;
    float first = INFINITY, second = -INFINITY;
    for (size_t i = 0; i < t->force.size; i++) {
        if (t->force.data[i].id == row->first) first = t->force.data[i].logit;
        if (t->force.data[i].id == row->second) second = t->force.data[i].logit;
    }
    double mass = 0;
    for (size_t i = 0; i < t->force.size; i++) mass += exp((double)t->force.data[i].logit - (double)first);
    *missing = (float)log(mass);
    return first - second;
}

static void emit(const trial *t, int32_t token, int32_t source, int32_t preferred, float gap, const ps_evidence *seen) {
    ps_verdict *const out = t->out;
    out->seen[out->n] = *seen;
    out->token[out->n] = token;
    out->source[out->n] = source;
    out->preferred[out->n] = preferred;
    out->gap[out->n] = gap;
    out->n++;
    out->n_accepted += source != PS_FROM_TARGET;
    out->n_relaxed += source == PS_FROM_RELAXED;
    out->ended = ps_api.vocab_is_eog(t->engine->role[PS_TARGET].vocab, token);
    if (t->sampler) ps_api.sampler_accept(t->sampler, token);
}

static const float *target_row(const trial *t, int32_t i) {
    return ps_ctx_logits(&t->engine->role[PS_TARGET], t->seq->row + i);
}

/*
 * How many of the verified tokens after the i-th are the target's own choices, up to what the gate asks. Their rows were computed
 * with this one. A sampler that draws for itself cannot be asked ahead of time: its likeliest token counts instead.
 */
static ps_status count_behind(trial *t, int32_t i, int32_t *behind) {
    for (*behind = 0; *behind < t->gate->confirm; ++*behind) {
        const int32_t at = i + 1 + *behind;
        if (at >= t->seq->verified) return PS_OK;
        const float *const row = target_row(t, at);
        PS_FAIL_UNLESS(row, PS_E_DECODE);
        ps_row found;
        PS_TRY(ps_scan(row, t->engine->n_vocab, PS_SCAN_TOP2, &found));
        if (ps_coupled(t->seq)) PS_TRY(draw(t, at, row, &found));
        if (found.first != t->seq->draft.token[at]) return PS_OK;
    }
    return PS_OK;
}

/* The rule's verdict on drafted token i where the target chose `chosen`. */
static ps_status decide(trial *t, ps_gate_state *state, const ps_row *found, int32_t i, int32_t chosen, int32_t *verdict,
                        float *nats, ps_evidence *seen) {
    const int32_t drafted = t->seq->draft.token[i];
    const int32_t barred = chosen != drafted && (special(t->engine, chosen) || special(t->engine, drafted));
    *seen = (ps_evidence){0};
    if (chosen != drafted && t->gate->theta < 1) seen->gap = gap_in_force(t, found, &seen->missing);
    if (chosen != drafted && !barred && ps_gate_may(t->gate, found, seen->gap, drafted)) PS_TRY(count_behind(t, i, &seen->behind));
    return ps_gate_decide(t->gate, state, found, seen, chosen, drafted, barred, verdict, nats);
}

/* Judge row i. *on tells whether the next row still belongs to the sequence. */
static ps_status judge(trial *t, int32_t i, bool *on) {
    const float *const row = target_row(t, i);
    PS_FAIL_UNLESS(row, PS_E_DECODE);
    ps_row found;
    ps_evidence seen = {0};
    int32_t chosen;
    PS_TRY(choose(t, i, row, &found, &chosen));
    if (i == 0) ps_temper_learn(t->engine, t->seq, t->seq->n, chosen);
    *on = false;
    int32_t verdict = PS_REJECTED;
    float nats = 0;
    if (i < t->seq->verified) {
        PS_TRY(decide(t, t->state, &found, i, chosen, &verdict, &nats, &seen));
        if (verdict != PS_REJECTED) {
            emit(t, t->seq->draft.token[i], verdict == PS_EXACT ? PS_FROM_DRAFT : PS_FROM_RELAXED, chosen, nats, &seen);
            *on = !t->out->ended;
            return PS_OK;
        }
    } else if (i < t->seq->draft.n) {
        ps_gate_state would = *t->state; /* not verified, so nothing is spent on it */
        PS_TRY(decide(t, &would, &found, i, chosen, &verdict, &nats, &seen));
        t->out->next = verdict != PS_REJECTED;
    }
    emit(t, chosen, PS_FROM_TARGET, chosen, 0, &seen);
    return PS_OK;
}

/* How many emitted tokens the draft predicted, the target's own included. */
static int32_t foreseen(const ps_draft *draft, const ps_verdict *out) {
    int32_t i = 0;
    while (i < out->n && i < draft->n && draft->token[i] == out->token[i]) i++;
    return i;
}

/* Commit what was emitted, for which there is room, and roll every KV back to the committed tokens. Nothing here may fail. */
static void commit(ps_engine *engine, int32_t index, const ps_verdict *out) {
    ps_seq *const seq = &engine->seq[index];
    const int32_t before = seq->n;
    const int32_t matched = out->n_foreseen;
    const bool goes_on = matched == out->n && !ps_reads_states(engine);
    if (ps_reads_states(engine)) {
        /* rows with the target's states replace what it drafted with its own */
        if (engine->role[PS_DRAFT].n_kv[index] > before) ps_count(&engine->tally.refed, out->n - 1);
        ps_ctx_roll_back(engine, PS_DRAFT, index, before);
        ps_draft_keep_states(engine, index, before - 1, seq->row, out->n);
    }
    memcpy(seq->token + seq->n, out->token, (size_t)out->n * sizeof *out->token);
    seq->n += out->n;
    ps_seq_drop_draft(seq, goes_on ? matched : seq->draft.n, engine->n_vocab);
    seq->row = -1;
    ps_ctx_roll_back(engine, PS_TARGET, index, seq->n - 1);
    ps_ctx_roll_back(engine, PS_DRAFT, index, before + matched + seq->draft.n); /* keep the tokens it drafted beyond */
    ps_ctx_roll_back(engine, PS_COMPANION, index, before + matched);
}

static ps_status accept(trial *t, int32_t index) {
    PS_FAIL_IF(t->seq->row < 0 || t->seq->verified < 0, PS_E_STATE);
    PS_TRY(ps_grow(&t->seq->token, &t->seq->cap, t->seq->n + t->seq->verified + 1, sizeof *t->seq->token));
    t->out->n_verified = t->seq->verified;
    t->out->next = -1;
    bool on = true;
    for (int32_t i = 0; on; i++) PS_TRY(judge(t, i, &on));
    t->out->n_foreseen = foreseen(&t->seq->draft, t->out);
    commit(t->engine, index, t->out);
    return PS_OK;
}

ps_status ps_accept(ps_engine *engine, int32_t seq, void *sampler, const ps_gate *gate, ps_gate_state *state,
                    ps_verdict *out) {
    PS_FAIL_IF(!engine || !state || !out || !ps_seq_valid(engine, seq), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    memset(out, 0, offsetof(ps_verdict, token));
    trial t = {engine, &engine->seq[seq], sampler, gate ? gate : &STRICT, state, out, {0}};
    const ps_status status = accept(&t, seq);
    ps_unlock(engine);
    return status;
}
