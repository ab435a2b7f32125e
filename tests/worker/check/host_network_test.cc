#include "worker/check/host_network.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
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

TEST(InterfacesTest, SelectsIpv6Too) {
  const std::vector<InterfaceAddress> all = {
      {.interface = "lo", .address = "::1", .prefix_bits = 128, .loopback = true},
      {.interface = "eth0", .address = "10.77.0.1", .prefix_bits = 24},
      {.interface = "eth0", .address = "fd77:0:0:1::5", .prefix_bits = 64}};
  const auto selected = [&](const std::string& include) { return AddressesText(SelectAddresses(all, include, "")); };
  EXPECT_EQ(selected(""), "eth0 10.77.0.1/24, eth0 fd77:0:0:1::5/64");
  EXPECT_EQ(selected("fd77::/48"), "eth0 fd77:0:0:1::5/64");
  EXPECT_EQ(selected("fd77::/64,::/128"), "");
  EXPECT_EQ(selected("0.0.0.0/0"), "eth0 10.77.0.1/24");
}

TEST(InterfacesTest, KnowsSubnets) {
  EXPECT_EQ(SubnetOf("10.77.0.9", 24), "10.77.0.0/24");
  EXPECT_EQ(SubnetOf("10.77.0.9", 0), "0.0.0.0/0");
  EXPECT_EQ(SubnetOf("10.77.0.9", 32), "10.77.0.9/32");
  EXPECT_EQ(SubnetOf("10.77.0.9", 33), "");
  EXPECT_EQ(SubnetOf("fd77::1:2:3:4", 64), "fd77::/64");
  EXPECT_EQ(SubnetOf("fd77::ff", 127), "fd77::fe/127");
  EXPECT_EQ(SubnetOf("pigeon", 24), "");
}

TEST(InterfacesTest, FindsLoopbackOnThisMachine) {
  const std::vector<InterfaceAddress> here = ListInterfaceAddresses();
  EXPECT_EQ(InterfaceWith(here, "127.0.0.1"), "lo");
  if (std::ifstream("/proc/net/if_inet6").peek() != EOF) {  // else a machine without IPv6
    EXPECT_EQ(InterfaceWith(here, "::1"), "lo");
  }
  EXPECT_EQ(InterfaceWith(here, "192.0.2.1"), "");
}

}  // namespace
}  // namespace starring
