"""Prompts to measure and compare with: English, Chinese and code, from a line to a page, and how long an answer to ask for.

All of it was written for this course. 24 of them, so that 16 slots are filled once and refilled on the way.
"""

from __future__ import annotations

PASSAGE = (
    "The town library opens at nine. Every morning the same four people wait at the door: a student who writes her "
    "thesis, a retired engineer who reads the newspapers, a father with a pram, and a boy who should be at school. "
    "By ten the tables at the window are taken. By noon the librarian has answered forty questions, thirty of them "
    "about the printer. In the afternoon a class of eight-year-olds comes in, and for one hour nobody reads anything. "
    "At six the lights go out, row by row, and the books that were left on the tables are put on a trolley. Nobody "
    "has ever counted how many books the library owns. The catalogue says 61,204, but the catalogue was made before "
    "the flood, and some of the books in it have been in a cellar under water for three weeks."
)
QUEUE = '''class Queue:
    """First in, first out, in a ring of fixed size."""

    def __init__(self, size):
        self.items = [None] * size
        self.head = 0
        self.count = 0

    def put(self, item):
        if self.count == len(self.items):
            raise OverflowError("the queue is full")
        self.items[(self.head + self.count) % len(self.items)] = item
        self.count += 1

    def get(self):
        if self.count == 0:
            raise IndexError("the queue is empty")
        item = self.items[self.head]
        self.items[self.head] = None
        self.head = (self.head + 1) % len(self.items)
        self.count -= 1
        return item
'''
STORY = (
    "老张在公交公司管调度。从前他的线路是定时班车：每三十分钟一班，不管车上坐了几个人，到点就走。早高峰的时候，"
    "站台上挤满了人，车一到就满；到了下午，一辆大车只拉两三个乘客，在环路上空转。后来公司换了小巴，不再有时刻表："
    "车一直在环路上跑，到一站有人下车，空出来的座位马上让给下一个等车的人。老张发现，车还是那些车，路还是那条路，"
    "一天拉的人却多了一倍。"
)

# (prompt, tokens to ask for)
PROMPTS: list[tuple[str, int]] = [
    ("What is the capital of France?", 8),
    ("Name three colours.", 12),
    ("Write a short story about a robot who learns to bake bread.", 128),
    ("Is the sky blue? Answer yes or no.", 8),
    ("用一句话解释什么是操作系统。", 24),
    ("What does this function return for n = 4?\n\ndef f(n):\n    return 1 if n < 2 else n * f(n - 1)", 24),
    (f"Summarise this in one sentence:\n\n{PASSAGE}", 32),
    ("Translate into English: 今天天气很好，我们去公园散步吧。", 16),
    ("What is 17 + 25?", 8),
    (f"Find the bug in this code, or say that there is none:\n\n{QUEUE}", 36),
    ("List the planets of the solar system in order.", 44),
    ("谁写了《红楼梦》？", 12),
    ("Explain to a child why the moon changes its shape.", 40),
    ("Give me a word that rhymes with 'light'.", 8),
    (f"下面这段话讲了什么道理？请用两句话回答。\n\n{STORY}", 20),
    ("Write a Python function that reverses a string.", 40),
    ("What is the difference between a list and a tuple in Python?", 36),
    (f"{PASSAGE}\n\nWho waits at the door of the library every morning?", 24),
    ("把“你好，世界”翻译成英语。", 10),
    ("SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 3;\n\nWhat does this query do?", 32),
    ("Say hello in four languages.", 20),
    (f"What is `self.head` for in this class?\n\n{QUEUE}", 24),
    ("Write an email to a colleague to move a meeting from Monday to Tuesday.", 56),
    ("Continue: 1, 1, 2, 3, 5, 8,", 16),
]
