/* See refuse.h. */
#undef malloc
#undef calloc
#undef realloc
#include "refuse.h"

#include <stdbool.h>
#include <stdlib.h>

static int64_t n_allocations, refused_at = -1;

static bool refuse(void) { return n_allocations++ == refused_at; }

void *may_malloc(size_t size);
void *may_calloc(size_t n, size_t size);
void *may_realloc(void *old, size_t size);

void *may_malloc(size_t size) { return refuse() ? NULL : malloc(size); }
void *may_calloc(size_t n, size_t size) { return refuse() ? NULL : calloc(n, size); }
void *may_realloc(void *old, size_t size) { return refuse() ? NULL : realloc(old, size); }

void refuse_allocation(int64_t k) {
    n_allocations = 0;
    refused_at = k;
}

int64_t allocations(void) { return n_allocations; }
