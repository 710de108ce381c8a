/* How a function fails: fail if, fail unless, forward. A build without NDEBUG remembers where, and ps_status_str reports it. */
#ifndef PS_ERROR_H
#define PS_ERROR_H

#include "pyspec.h"

#ifdef NDEBUG
#define PS_ERROR(status) (status)
#else
#define PS_ERROR(status) ps_error_at(status, __FILE__, __LINE__)
ps_status ps_error_at(ps_status status, const char *file, int line);
#endif

#define PS_FAIL_IF(condition, status)            \
    do {                                         \
        if (condition) return PS_ERROR(status);  \
    } while (0)
#define PS_FAIL_UNLESS(condition, status) PS_FAIL_IF(!(condition), status)
#define PS_TRY(expression)                          \
    do {                                            \
        const ps_status ps_try_ = (expression);     \
        if (ps_try_ != PS_OK) return ps_try_;       \
    } while (0)

#endif /* PS_ERROR_H */
