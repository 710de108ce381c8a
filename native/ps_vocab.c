/* Tokens by attribute, for a whole vocabulary at once: from Python, one query costs as much as hundreds here. */
#include "ps_api.h"
#include "ps_error.h"

ps_status ps_vocab_with(const void *vocab, uint32_t attributes, int32_t *ids, int32_t room, int32_t *n) {
    PS_FAIL_IF(!vocab || !n || room < 0 || (room > 0 && !ids), PS_E_ARG);
    PS_FAIL_IF(!ps_api_ready(), PS_E_UNBOUND);
    const struct llama_vocab *const asked = vocab;
    const int32_t n_tokens = ps_api.vocab_n_tokens(asked);
    int32_t found = 0;
    for (int32_t token = 0; token < n_tokens; token++) {
        if (!(ps_api.vocab_get_attr(asked, token) & attributes)) continue;
        if (found < room) ids[found] = token;
        found++;
    }
    *n = found;
    return PS_OK;
}
