/* Allocations that fail: malloc, calloc and realloc are wrapped by the linker (run.sh), and the k-th of them gives no memory. */
#ifndef REFUSE_H
#define REFUSE_H

#include <stdint.h>

/* Refuses the k-th allocation from here on, counted from 0; none where k is -1. */
void refuse_allocation(int64_t k);

/* Allocations since then. */
int64_t allocations(void);

#endif /* REFUSE_H */
