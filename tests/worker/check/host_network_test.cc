#include "worker/check/host_network.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace starring {
namespace {

const std::vector<InterfaceAddress> kAddresses = {
    {.interface = "lo", .address = "127.0.0.1", .prefix_bits = 8, .loopback = true},
    {.interface = "eth0", .address = "10.77.0.1", .prefix_bits = 24},
    {.interface = "docker0", .address = "172.17.0.1", .prefix_bits = 16}};

std::string Selected(const std::string& include, const std::string& exclude) {
  return AddressesText(SelectAddresses(kAddresses, include, exclude));
}

TEST(InterfacesTest, SelectsAsOpenMpiDoes) {
  EXPECT_EQ(Selected("", ""), "eth0 10.77.0.1/24, docker0 172.17.0.1/16");
  EXPECT_EQ(Selected("eth0", ""), "eth0 10.77.0.1/24");
  EXPECT_EQ(Selected("10.0.0.0/8,lo", "eth0"), "lo 127.0.0.1/8, eth0 10.77.0.1/24");
  EXPECT_EQ(Selected("", "docker0"), "lo 127.0.0.1/8, eth0 10.77.0.1/24");
  EXPECT_EQ(Selected("", "127.0.0.0/8,172.16.0.0/12"), "eth0 10.77.0.1/24");
  EXPECT_EQ(Selected("ib0", ""), "");
}

TEST(InterfacesTest, KnowsSubnets) {
  EXPECT_EQ(SubnetOf("10.77.0.9", 24), "10.77.0.0/24");
  EXPECT_EQ(SubnetOf("10.77.0.9", 0), "0.0.0.0/0");
  EXPECT_EQ(SubnetOf("10.77.0.9", 32), "10.77.0.9/32");
  EXPECT_EQ(SubnetOf("pigeon", 24), "");
}

TEST(InterfacesTest, FindsLoopbackOnThisMachine) {
  const std::vector<InterfaceAddress> here = ListInterfaceAddresses();
  EXPECT_EQ(InterfaceWith(here, "127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceWith(here, "192.0.2.1"), "");
}

}  // namespace
}  // namespace starring
