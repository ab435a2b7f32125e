#include "common/base/utf8.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Utf8Test, CharactersStay) {
  for (const std::string text :
       {"", "plain", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbd", "a\\x01"}) {
    EXPECT_EQ(AsUtf8(text), text);
  }
  EXPECT_EQ(AsUtf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8Test, OtherBytesAreSpelledOut) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"m\xff.net", "m\\xff.net"},
      {"\x80", "\\x80"},
      {"\xc3", "\\xc3"},                             // cut
      {"\xe2\x82", "\\xe2\\x82"},                    // cut
      {"\xf0\x9f\x98", "\\xf0\\x9f\\x98"},           // cut
      {"\xc0\xaf", "\\xc0\\xaf"},                    // a longer spelling of "/"
      {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},           // the same
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // a surrogate
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // above U+10FFFF
      {"\xe4\xc3\xa4", "\\xe4\xc3\xa4"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(AsUtf8(text), expected);
}

}  // namespace
}  // namespace starring
