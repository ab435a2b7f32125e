// tests/deploy/bundle_test.py tests the same inside a bundle, with real processes.
#include "common/transport/mpi/bundled_open_mpi.h"

#include <stdlib.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(BundledOpenMpiTest, AProgramOfABuildIsInNoBundle) { EXPECT_EQ(BundleFolder(), ""); }

TEST(BundledOpenMpiTest, OverridesAnEnvironmentForAnotherOpenMpi) {
  setenv("OPAL_PREFIX", "/opt/openmpi-5", 1);
  setenv("HOME", "/home", 1);
  UseBundledOpenMpi("/a folder/starring");
  EXPECT_STREQ(getenv("OPAL_PREFIX"), "/a folder/starring");
  EXPECT_STREQ(getenv("OPAL_PKGLIBDIR"), "/a folder/starring/lib/openmpi");
  EXPECT_STREQ(getenv("PMIX_PKGLIBDIR"), "/a folder/starring/lib/pmix");
  EXPECT_STREQ(getenv("HOME"), "/home");
}

}  // namespace
}  // namespace starring
