/*
 * The temperature at which a draft draws, as a factor of the target's, learned from what would have agreed.
 *
 * With the noise that both share, any draft leaves the text as it is, so the draft may draw at another temperature than the target;
 * one that knows less agrees more often where it is sharper. At the first token of each draft the choices of a few factors are
 * kept, and the target's choice there tells which of them were right, whatever was drafted. No further decode is needed. Under a
 * margin the text depends on the draft, which must then not depend on other texts: it draws at the target's temperature.
 */
#include "ps_internal.h"

static const float FACTOR[PS_N_TEMPERS] = {1.0f, 0.8f, 0.65f, 0.5f};

static const float MEMORY = 1.0f - 1.0f / 1024; /* of choices that agreed */

static const float AHEAD = 4.0f; /* so many more must have agreed before another factor is taken */

ps_coupling ps_tempered(const ps_engine *engine, const ps_seq *seq, int32_t which) {
    ps_coupling how = seq->coupling;
    const int32_t chosen = how.tempered ? engine->temper.chosen : 0;
    how.temperature *= FACTOR[which < 0 ? chosen : which];
    return how;
}

static ps_row draw(ps_coupling how, int64_t position, const float *row, int32_t n_vocab, const ps_row *found, float cut) {
    ps_race race = ps_race_begin(&how, position);
    how.min_p = cut;
    ps_race_row(&race, row, n_vocab, &how, found);
    return ps_race_result(&race, &how);
}

ps_row ps_temper_draw(const ps_engine *engine, ps_seq *seq, int32_t at, const float *row, int32_t n_vocab, const ps_row *found,
                      float cut) {
    const ps_row drawn = draw(ps_tempered(engine, seq, -1), seq->n + at, row, n_vocab, found, cut);
    if (at > 0 || !seq->coupling.tempered) return drawn;
    seq->tempered_at = seq->n;
    for (int32_t i = 0; i < PS_N_TEMPERS; i++) {
        if (i == engine->temper.chosen) seq->tempered[i] = drawn.first;
        else seq->tempered[i] = draw(ps_tempered(engine, seq, i), seq->n, row, n_vocab, found, cut).first;
    }
    return drawn;
}

void ps_temper_learn(ps_engine *engine, ps_seq *seq, int32_t position, int32_t chosen) {
    if (seq->tempered_at != position) return;
    seq->tempered_at = -1;
    float *const agreed = engine->temper.agreed;
    int32_t best = engine->temper.chosen;
    for (int32_t i = 0; i < PS_N_TEMPERS; i++) agreed[i] = MEMORY * agreed[i] + (seq->tempered[i] == chosen);
    for (int32_t i = 0; i < PS_N_TEMPERS; i++) best = agreed[i] > agreed[best] ? i : best;
    if (agreed[best] > agreed[engine->temper.chosen] + AHEAD) engine->temper.chosen = best;
}
