// Says which limit of the machine has ended a program, where C++'s library would only say "terminate called after
// throwing an instance of 'std::system_error'".
#ifndef STARRING_COMMON_HOST_EXHAUSTED_H_
#define STARRING_COMMON_HOST_EXHAUSTED_H_

#include <string>

namespace starring {

// The limits on this process's threads, and those on its memory. Each limit comes with its number and the name by which
// a person finds it. `root` is a folder with proc and sys, for tests.
std::string ThreadLimitsText(const std::string& root = "");
std::string MemoryLimitsText(const std::string& root = "");

// From now on a thread that cannot be started, or memory that cannot be had, ends this process with one line and exit
// code 1, unless the exception is caught. Any other cause ends it as before. `program` begins the line and lives as
// long as the process. To be called once, at the beginning of main.
void ExplainExhaustion(const char* program);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_EXHAUSTED_H_
