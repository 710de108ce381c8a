/* Allocations that fail: run.sh has every other file call may_malloc and its like by those names, and the k-th gives no memory. */
#ifndef REFUSE_H
#define REFUSE_H

#include <stdint.h>

/* Refuses the k-th allocation from here on, counted from 0; none where k is -1. */
void refuse_allocation(int64_t k);

/* Allocations since then. */
int64_t allocations(void);

#endif /* REFUSE_H */
