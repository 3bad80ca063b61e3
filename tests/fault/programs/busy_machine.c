// A machine whose load rises for some calls of getloadavg(), by which OpenMP sizes regions where OMP_DYNAMIC is set.
#include <stdlib.h>

int getloadavg(double loads[], int n) {
  static int calls;
  const int call = __sync_fetch_and_add(&calls, 1);
  const double load = call >= atoi(getenv("TESSERA_TEST_BUSY_AFTER")) ? 64 : 0;
  for (int i = 0; i < n; ++i) loads[i] = load;
  return n;
}
