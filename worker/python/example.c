// Four processes add their arrays by libstarring.so, and each prints the mean.
//
//   example [star|ring]
//
// A program of its own would start its processes by a launcher instead of fork, and give each its rank and rank 0's
// address; here rank 0's listening socket, which every process inherits, has a port that the system has chosen.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/python/starring.h"

enum { kRanks = 4, kElements = 100000 };

// A socket that listens at a free port of the loopback; writes host:port to `address`. -1: none.
static int Listen(char* address, size_t size) {
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(place);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(fd, (struct sockaddr*)&place, length) != 0 || listen(fd, kRanks * 4) != 0 ||
      getsockname(fd, (struct sockaddr*)&place, &length) != 0) {
    return -1;
  }
  snprintf(address, size, "127.0.0.1:%d", ntohs(place.sin_port));
  return fd;
}

static int Failed(const st_group* group, int rank) {
  fprintf(stderr, "rank %d: %s\n", rank, st_last_error(group));
  return 1;
}

static int RunRank(int rank, int listener, const char* address, int topology) {
  const st_options options = {.struct_bytes = sizeof(options),
                              .rank = rank,
                              .world_size = kRanks,
                              .topology = topology,
                              .rendezvous = address,
                              .listener = rank == 0 ? listener : -1,
                              .group_name = "example",
                              .join_deadline_s = 20,
                              .exchange_deadline_s = 20,
                              .stall_report_s = 4};
  st_group* group = NULL;
  if (st_open(&options, &group) != ST_OK) return Failed(NULL, rank);
  // Two arrays under way at a time, as the buckets of a backward pass are.
  static float arrays[2][kElements];
  int64_t tickets[2];
  for (int bucket = 0; bucket < 2; ++bucket) {
    for (int i = 0; i < kElements; ++i) arrays[bucket][i] = (float)(rank + bucket + i % 8);
    if (st_allreduce(group, 0, bucket, 0, arrays[bucket], kElements, ST_FLOAT32, kRanks, &tickets[bucket]) != ST_OK) {
      return Failed(group, rank);
    }
  }
  for (int bucket = 0; bucket < 2; ++bucket) {
    int code;
    while ((code = st_wait(group, tickets[bucket], 1000)) == ST_TIMEOUT) {
    }
    if (code != ST_OK) return Failed(group, rank);
    printf("rank %d: bucket %d has the mean %g %g ... %g\n", rank, bucket, arrays[bucket][0], arrays[bucket][1],
           arrays[bucket][kElements - 1]);
  }
  return st_close(group) == ST_OK ? 0 : Failed(NULL, rank);
}

int main(int argc, char** argv) {
  const int topology = argc > 1 && strcmp(argv[1], "ring") == 0 ? ST_RING : ST_STAR;
  char address[64];
  const int listener = Listen(address, sizeof(address));
  if (listener < 0) {
    perror("cannot listen on the loopback");
    return 1;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() == 0) return RunRank(rank, listener, address, topology);
  }
  close(listener);
  int failures = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) ++failures;
  }
  return failures == 0 ? 0 : 1;
}
