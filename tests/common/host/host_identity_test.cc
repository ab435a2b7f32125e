#include "common/host/host_identity.h"

#include <sys/utsname.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(HostIdentityTest, TheNameIsTheSystems) {
  utsname facts = {};
  ASSERT_EQ(uname(&facts), 0);
  EXPECT_EQ(HostName(), facts.nodename);
}

TEST(HostIdentityTest, TheBootIdHas36Characters) { EXPECT_EQ(BootId().size(), 36u); }

}  // namespace
}  // namespace starring
