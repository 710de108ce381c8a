/* Fills the binding table by name, and lists compiled sizes and offsets for the handshake. */
#include <stddef.h>
#include <string.h>

#include "ps_api.h"
#include "ps_error.h"

ps_api_table ps_api;

typedef struct entry {
    const char *name;
    int32_t value;
} entry;

#define MEMBER(result, name, parameters) {"llama_" #name, (int32_t)offsetof(ps_api_table, name)},
static const entry functions[] = {PS_LLAMA_API(MEMBER) PS_LLAMA_EXT_API(MEMBER)};
#undef MEMBER

#define ONE(result, name, parameters) +1
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0], N_REQUIRED = 0 PS_LLAMA_API(ONE) };
#undef ONE

/* The table is accessed as memory, since C has no cast from an object pointer to a function pointer. */
_Static_assert(sizeof(void *) == sizeof(void (*)(void)), "function pointers are as wide as object pointers");
_Static_assert(sizeof(ps_api_table) == N_FUNCTIONS * sizeof(void *), "the table holds nothing but pointers");

const char *ps_api_name(int32_t index) { return index >= 0 && index < N_FUNCTIONS ? functions[index].name : NULL; }

ps_status ps_api_bind(int32_t index, void *function) {
    PS_FAIL_IF(index < 0 || index >= N_FUNCTIONS, PS_E_ARG);
    memcpy((char *)&ps_api + functions[index].value, &function, sizeof function);
    return PS_OK;
}

bool ps_api_ready(void) {
    for (int32_t i = 0; i < N_REQUIRED; i++) {
        void *function;
        memcpy(&function, (const char *)&ps_api + functions[i].value, sizeof function);
        if (!function) return false;
    }
    return true;
}

#define SIZE(type) {#type, (int32_t)sizeof(struct type)}
#define OFFSET(type, field) {#type "." #field, (int32_t)offsetof(struct type, field)}
static const entry layout[] = {
    SIZE(llama_batch),
    OFFSET(llama_batch, n_tokens),
    OFFSET(llama_batch, token),
    OFFSET(llama_batch, embd),
    OFFSET(llama_batch, pos),
    OFFSET(llama_batch, n_seq_id),
    OFFSET(llama_batch, seq_id),
    OFFSET(llama_batch, logits),
    SIZE(llama_token_data),
    OFFSET(llama_token_data, id),
    OFFSET(llama_token_data, logit),
    OFFSET(llama_token_data, p),
    SIZE(llama_token_data_array),
    OFFSET(llama_token_data_array, data),
    OFFSET(llama_token_data_array, size),
    OFFSET(llama_token_data_array, selected),
    OFFSET(llama_token_data_array, sorted),
};
#undef SIZE
#undef OFFSET

enum { N_LAYOUT = sizeof layout / sizeof layout[0] };

ps_status ps_abi_entry(int32_t index, const char **name, int32_t *value) {
    PS_FAIL_IF(index < 0 || index >= N_LAYOUT || !name || !value, PS_E_ARG);
    *name = layout[index].name;
    *value = layout[index].value;
    return PS_OK;
}
