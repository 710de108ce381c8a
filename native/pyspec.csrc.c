#include "pyspec.h"
