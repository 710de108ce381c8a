/* Status messages, in a debug build with the place of the error; and the interface's key. */
#include <stdio.h>
#include <string.h>

#include "ps_error.h"

#ifndef PYSPEC_KEY
#define PYSPEC_KEY "unknown" /* built without the package, as in the C tests */
#endif

const char *ps_key(void) { return PYSPEC_KEY; }

static const char *words(ps_status status) {
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

#ifdef NDEBUG

const char *ps_status_str(ps_status status) { return words(status); }

#else

static _Thread_local struct {
    ps_status status; /* PS_OK: no error, or it was reported */
    const char *file;
    int line;
} last;

ps_status ps_error_at(ps_status status, const char *file, int line) {
    const char *const slash = strrchr(file, '/');
    last.status = status;
    last.file = slash ? slash + 1 : file;
    last.line = line;
    return status;
}

const char *ps_status_str(ps_status status) {
    static _Thread_local char told[128];
    if (status == PS_OK || last.status != status) return words(status);
    last.status = PS_OK;
    snprintf(told, sizeof told, "%s (%s:%d)", words(status), last.file, last.line);
    return told;
}

#endif
