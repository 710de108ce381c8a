/*
 * Block verification (Sun et al., arXiv 2403.10444, algorithm 2): a draft that was drawn from the draft model's own distribution is
 * judged as a whole. No verification of one draft that keeps the target's distribution accepts more of it.
 *
 * Token i is drawn from q_i, and the target has p_i there. A draft's first i tokens weigh w_i: w_0 = 1, and w_i+1 = min(1, w_i *
 * p_i(x_i) / q_i(x_i)). With r_i, the sum of max(0, w_i * p_i - q_i), they are accepted with chance r_i / (r_i + 1 - w_i), a whole
 * draft with its weight; the longest that is accepted stays. What follows it is drawn from max(0, w_i * p_i - q_i), behind a whole
 * draft from the target.
 *
 * The text keeps the target's distribution only if no token is dropped because of what was drawn, so whether a draft goes on must be
 * settled before its next token is. And each draft needs noise that nothing has seen: here by the place where the round begins.
 */
#include <math.h>

#include "ps_internal.h"

static const uint64_t OWN = 0x5D4A1C0B00000000u; /* no user's seed has its upper half */

/* A place of the noise that only this round uses; i: of a drafted token, PS_MAX_DRAFT for acceptance. */
static int64_t place(const ps_seq *seq, int32_t i) { return (int64_t)seq->n * (PS_MAX_DRAFT + 1) + i; }

/* List the ids from the floor up, as long as they are few. */
static void list(ps_drawn *from, const float *row, int32_t n_vocab) {
    const int32_t level = ps_simd();
    from->n = 0;
    for (int32_t i = 0, end; i < n_vocab && from->n <= PS_FEW; i = end) {
        end = n_vocab - i < PS_STRETCH ? n_vocab : i + PS_STRETCH;
        if (ps_scan_max(row + i, end - i, level) < from->floor) continue;
        for (int32_t id = i; id < end && from->n <= PS_FEW; id++) {
            if (row[id] < from->floor) continue;
            if (from->n < PS_FEW) {
                from->id[from->n] = id;
                from->logit[from->n] = row[id];
            }
            from->n++;
        }
    }
}

/* log of the sum of exp(logit / temperature) from the floor up. */
static double log_mass(const float *logit, int32_t n, float floor, float most, double temperature) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (logit[i] >= floor) sum += exp(((double)logit[i] - (double)most) / temperature);
    }
    return (double)most / temperature + log(sum);
}

ps_row ps_block_draw(ps_seq *seq, int32_t at, const float *row, int32_t n_vocab, const ps_row *found, float cut) {
    ps_drawn *const from = &seq->drawn[at];
    ps_coupling how = seq->coupling;
    how.seed ^= OWN;
    how.min_p = cut;
    const double temperature = (double)how.temperature;
    ps_race race = ps_race_begin(&how, place(seq, at));
    from->alone = false;
    from->floor = cut > 0 ? found->z1 + logf(cut) : -INFINITY; /* as ps_race_row has it */
    list(from, row, n_vocab);
    const bool few = from->n <= PS_FEW;
    if (!few) ps_race_row(&race, row, n_vocab, &how, found);
    for (int32_t k = 0; few && k < from->n; k++) ps_race_enter(&race, from->id[k], (double)from->logit[k] / temperature);
    from->log_mass = log_mass(few ? from->logit : row, few ? from->n : n_vocab, from->floor, found->z1, temperature);
    return ps_race_result(&race, &how);
}

bool ps_block_drawn(const ps_seq *seq) { return seq->coupling.block && seq->draft.n > 0 && seq->has_row[0]; }

/* q of token i. */
static double drafted(const ps_engine *engine, const ps_seq *seq, int32_t i, int32_t id) {
    const ps_drawn *const from = &seq->drawn[i];
    if (from->alone) return id == seq->draft.token[i] ? 1 : 0;
    float logit = -INFINITY;
    for (int32_t k = 0; from->n <= PS_FEW && k < from->n; k++) logit = from->id[k] == id ? from->logit[k] : logit;
    if (from->n > PS_FEW && id < engine->role[PS_DRAFT].n_vocab) logit = seq->kept[(size_t)i * (size_t)engine->n_vocab + (size_t)id];
    if (logit == -INFINITY || logit < from->floor) return 0;
    return exp((double)logit / (double)seq->coupling.temperature - from->log_mass);
}

/* log of the sum of exp(logit), so that a candidate's probability is exp(logit - that). */
static double log_sum(ps_candidates target) {
    double most = -INFINITY, mass = 0;
    for (size_t k = 0; k < target.n; k++) most = fmax(most, (double)target.data[k].logit);
    for (size_t k = 0; k < target.n; k++) mass += exp((double)target.data[k].logit - most);
    return most + log(mass);
}

void ps_block_weigh(const ps_engine *engine, const ps_seq *seq, int32_t i, ps_candidates target, double weight, double *left,
                    double *next) {
    const double log_all = log_sum(target);
    *left = *next = 0;
    for (size_t k = 0; k < target.n; k++) {
        const int32_t id = target.data[k].id;
        const double p = exp((double)target.data[k].logit - log_all), q = drafted(engine, seq, i, id);
        *left += fmax(0, weight * p - q);
        if (id == seq->draft.token[i] && q > 0) *next = fmin(1, weight * p / q);
    }
}

bool ps_block_accepts(const ps_seq *seq, int32_t i, double chance) {
    const ps_noise_key key = ps_noise_at(seq->coupling.seed ^ OWN, place(seq, PS_MAX_DRAFT));
    return ((double)ps_noise_hash(key, (uint32_t)i) + 0.5) * (1.0 / 4294967296.0) < chance;
}

void ps_block_race(const ps_engine *engine, const ps_seq *seq, int32_t i, ps_candidates target, double weight, ps_race *race) {
    const double log_all = log_sum(target);
    for (size_t k = 0; k < target.n && i < seq->verified; k++) {
        const int32_t id = target.data[k].id;
        const double left = weight * exp((double)target.data[k].logit - log_all) - drafted(engine, seq, i, id);
        if (left > 0) ps_race_enter(race, id, log(left));
    }
    if (race->first >= 0) return;
    /* behind a whole draft; or nothing is left, as the draft has the target's own distribution there */
    for (size_t k = 0; k < target.n; k++) ps_race_enter(race, target.data[k].id, (double)target.data[k].logit);
}
