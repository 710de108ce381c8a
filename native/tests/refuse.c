/* See refuse.h. */
#include "refuse.h"

#include <stdbool.h>
#include <stddef.h>

static int64_t n_allocations, refused_at = -1;

static bool refuse(void) { return n_allocations++ == refused_at; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size) { return refuse() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return refuse() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *old, size_t size) { return refuse() ? NULL : __real_realloc(old, size); }

void refuse_allocation(int64_t k) {
    n_allocations = 0;
    refused_at = k;
}

int64_t allocations(void) { return n_allocations; }
