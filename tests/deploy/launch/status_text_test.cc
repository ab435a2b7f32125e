#include "deploy/launch/status_text.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(StatusTextTest, ARunThatTrains) {
  EXPECT_EQ(StatusText({.generation = 2,
                        .first_step = 40,
                        .step = 45,
                        .end_step = 960,
                        .cause = "worker 1 is gone",
                        .members = {{.name = "worker 0", .what = "rank 0, micro-batches 0-7"}},
                        .snapshots = {40, 44}}),
            "generation 2, step 45 of 960, from step 40\nworker 0: rank 0, micro-batches 0-7\n"
            "snapshots of steps 40, 44\n");
}

TEST(StatusTextTest, WhatOthersSayIsPrintable) {
  EXPECT_EQ(StatusText({.changing = true,
                        .cause = "worker\x1b[2J is gone",
                        .members = {{.name = "worker 1\nserver 0", .what = "spare\r"}},
                        .missing_shards = {1}}),
            "no generation has begun\nwaiting for the next generation, after: worker?[2J is gone\n"
            "shard 1 is missing\nworker 1?server 0: spare?\nsnapshots of steps \n");
}

}  // namespace
}  // namespace starring
