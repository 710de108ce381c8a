/* See check.h. */
#include "check.h"

int n_failed, n_checked;
