/* Status names and the interface's key. */
#include "pyspec.h"

#ifndef PYSPEC_KEY
#define PYSPEC_KEY "unknown" /* built without the package, as the C tests are */
#endif

const char *ps_key(void) { return PYSPEC_KEY; }

const char *ps_status_str(ps_status status) {
    switch (status) {
        case PS_OK: return "ok";
        case PS_E_ARG: return "an argument is outside its range";
        case PS_E_NOMEM: return "out of memory";
        case PS_E_BUSY: return "another thread is inside this engine";
        case PS_E_UNBOUND: return "a llama.cpp function has not been bound";
        case PS_E_DECODE: return "llama_decode failed";
        case PS_E_NOSLOT: return "llama_decode found no room in the KV cache";
        case PS_E_CANCELLED: return "cancelled";
        case PS_E_NUMERIC: return "a logit is not finite";
        case PS_E_STATE: return "calls out of order";
        case PS_E_SAMPLER: return "the sampler chain selected nothing";
    }
    return "unknown status";
}
