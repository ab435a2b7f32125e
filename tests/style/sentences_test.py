"""Tests that sentences begin with what acts. sentences_to_mend.txt lists, for each file, how many do not yet."""

import os
import sys
import unittest

import sentences
import style_test

LIST = "tests/style/sentences_to_mend.txt"


def count(root: str) -> dict[str, int]:
    counts = {}
    for path in style_test.list_files(root):
        if path.startswith("tests/style/"):  # these files have examples
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            found = sentences.sentences(path, file.read())
        if found:
            counts[path] = len(found)
    return counts


class SentencesTest(unittest.TestCase):
    def test_the_list_only_shrinks(self):
        root = style_test.find_repository()
        with open(os.path.join(root, LIST), encoding="utf-8") as file:
            listed = {path: int(number) for number, path in (line.split() for line in file)}
        found = count(root)
        worse = [f"{path}: {found[path]} sentences begin with who, what or of, {listed.get(path, 0)} are listed: name "
                 "the process or object first" for path in found if found[path] > listed.get(path, 0)]
        self.assertEqual(worse, [])
        better = [f"{path}: {listed[path]} sentences are listed, {found.get(path, 0)} are there: shorten {LIST}"
                  for path in listed if listed[path] > found.get(path, 0)]
        self.assertEqual(better, [])

    def test_beginnings(self):
        comment = ("// Adds.  Who is late\n// waits. Nobody asks who. What then?\n//\n// Of two, one. Whoever\n"
                   "int a;  // What: b.\n")
        self.assertEqual(sentences.sentences("a.h", comment), ["Who is late waits.", "Of two, one.", "What: b."])
        page = ("# What this is\n\nText: Of all. In what way.\n\n- Who?\n- What is kept stays.\n\n"
                "```\nWho writes.\n```\n")
        self.assertEqual(sentences.sentences("a.md", page), ["Of all.", "What is kept stays."])
        self.assertEqual(sentences.sentences("a.py", "x = 1  # what\n# Of it.\ny = 'Who is'\n"), ["Of it."])
        self.assertEqual(sentences.sentences("common/BUILD", "# What a test needs.\nx()\n"), ["What a test needs."])
        self.assertEqual(sentences.sentences("data.bin", "Who is it. Of it.\n"), [])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:  # after sentences were mended
        top = style_test.find_repository()
        with open(os.path.join(top, LIST), "w", encoding="utf-8") as list_file:
            list_file.writelines(f"{number} {path}\n" for path, number in sorted(count(top).items()))
    else:
        unittest.main()
