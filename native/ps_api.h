/* The binding table: `ps_api.decode(ctx, batch)` calls llama_decode of the library that llama_cpp has loaded. */
#ifndef PS_API_H
#define PS_API_H

#include "llama_abi.h"
#include "pyspec.h"

typedef struct ps_api_table {
#define PS_API_MEMBER(result, name, parameters) result(*name) parameters;
    PS_LLAMA_API(PS_API_MEMBER)
    PS_LLAMA_EXT_API(PS_API_MEMBER)
#undef PS_API_MEMBER
} ps_api_table;

extern ps_api_table ps_api; /* filled by ps_api_bind */

bool ps_api_ready(void); /* whether llama.h's part is complete */

#endif /* PS_API_H */
