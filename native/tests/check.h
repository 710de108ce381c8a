/* The C tests' whole framework: CHECK counts and reports, RUN names the test, and the exit status tells. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

extern int n_failed, n_checked; /* one count for all files of a program: check.c has it */

#define CHECK(condition)                                                      \
    do {                                                                      \
        n_checked++;                                                          \
        if (!(condition)) {                                                   \
            if (++n_failed > 200) exit(1); /* a loop that fails for ever */    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
        }                                                                     \
    } while (0)

#define RUN(test)                                            \
    do {                                                     \
        const int before_ = n_failed;                        \
        test();                                              \
        if (n_failed > before_) fprintf(stderr, "FAILED %s\n", #test); \
    } while (0)

#define REPORT() (printf("%s: %d checks, %d failed\n", __FILE__, n_checked, n_failed), n_failed > 0)

#endif /* CHECK_H */
