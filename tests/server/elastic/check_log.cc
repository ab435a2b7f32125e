// Reads a log of generations and proves that every leaf of every step counted once (CheckExactlyOnce).
//
//   check_log FILE      exit status 0: it is so; 1: it is not, and what is wrong
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "server/elastic/generation_log.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_log FILE\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  std::stringstream text;
  text << file.rdbuf();
  const absl::Status status =
      file.good() || file.eof() ? starring::CheckExactlyOnce(text.str()) : absl::NotFoundError("cannot be read");
  std::printf("%s: %s\n", argv[1], status.ok() ? "every leaf of every step counted once" : status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
