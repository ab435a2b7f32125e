// Says which limit of the machine has ended a program, where C++'s library would only say "terminate called after
// throwing an instance of 'std::system_error'".
#ifndef STARRING_COMMON_HOST_EXHAUSTED_H_
#define STARRING_COMMON_HOST_EXHAUSTED_H_

#include <string>

namespace starring {

// What limits the threads of this process, and what its memory, each with its number and the name by which a person
// finds it. `root` is a folder with proc and sys, for tests.
std::string ThreadLimitsText(const std::string& root = "");
std::string MemoryLimitsText(const std::string& root = "");

// From now on a thread that cannot be started, or memory that cannot be had, ends this process with one line and exit
// code 1, unless somebody catches the exception. Any other cause ends it as before. `program` begins the line and lives
// as long as the process. To be called once, at the beginning of main.
void ExplainExhaustion(const char* program);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_EXHAUSTED_H_
