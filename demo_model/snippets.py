"""Small classic functions, written for the demo model's training text.

The standard library holds no ``fibonacci``: without these a prompt such as ``def fibonacci(n):`` would
be answered with library plumbing. Each entry is source text in which ``{doc}`` stands for an optional
docstring; :func:`variants` renames arguments, drops docstrings and adds hints, so that the model learns
the function and not one spelling of it. All of it was written for this project and carries its licence.

Long: text that the model is trained on.
"""

# ruff: noqa: E501 -- the heads of the snippets are one line each

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple


class Snippet(NamedTuple):
    """One function: its name, what it does (no full stop), its source, and spare argument names."""

    name: str
    does: str
    source: str
    renames: dict[str, tuple[str, ...]]


_RAW = """
# fibonacci | return the nth Fibonacci number | n: num, k, x
def fibonacci(n):
    {doc}
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
# fib | return the nth Fibonacci number, computed recursively | n: num, k
def fib(n):
    {doc}
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)
# fibonacci_sequence | return the first n Fibonacci numbers as a list | n: count, length
def fibonacci_sequence(n):
    {doc}
    result = []
    a, b = 0, 1
    while len(result) < n:
        result.append(a)
        a, b = b, a + b
    return result
# factorial | return n! for a non-negative integer n | n: num, k, x
def factorial(n):
    {doc}
    if n < 0:
        raise ValueError("factorial() not defined for negative values")
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result
# gcd | return the greatest common divisor of a and b | a: x, m; b: y, n
def gcd(a, b):
    {doc}
    while b:
        a, b = b, a % b
    return abs(a)
# lcm | return the least common multiple of a and b | a: x, m; b: y, n
def lcm(a, b):
    {doc}
    if a == 0 or b == 0:
        return 0
    return abs(a * b) // gcd(a, b)
# is_prime | return True if n is a prime number | n: num, number, x
def is_prime(n):
    {doc}
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i += 1
    return True
# primes | return a list of all prime numbers up to a limit | limit: n, stop
def primes(limit):
    {doc}
    sieve = [True] * (limit + 1)
    sieve[0:2] = [False, False]
    for i in range(2, int(limit ** 0.5) + 1):
        if sieve[i]:
            for j in range(i * i, limit + 1, i):
                sieve[j] = False
    return [i for i, prime in enumerate(sieve) if prime]
# prime_factors | return the prime factors of n in ascending order | n: num, number
def prime_factors(n):
    {doc}
    factors = []
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors
# binary_search | return the index of target in a sorted list, or -1 | items: values, arr, seq; target: x, key
def binary_search(items, target):
    {doc}
    low, high = 0, len(items) - 1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] == target:
            return mid
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid - 1
    return -1
# linear_search | return the index of the first item equal to target, or -1 | items: values, arr; target: x, key
def linear_search(items, target):
    {doc}
    for index, value in enumerate(items):
        if value == target:
            return index
    return -1
# bubble_sort | sort a list in place by swapping neighbours | items: values, arr, lst
def bubble_sort(items):
    {doc}
    n = len(items)
    for i in range(n):
        for j in range(n - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items
# insertion_sort | sort a list in place by insertion | items: values, arr, lst
def insertion_sort(items):
    {doc}
    for i in range(1, len(items)):
        key = items[i]
        j = i - 1
        while j >= 0 and items[j] > key:
            items[j + 1] = items[j]
            j -= 1
        items[j + 1] = key
    return items
# quick_sort | return a sorted copy of a list | items: values, arr, lst
def quick_sort(items):
    {doc}
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    left = [x for x in items if x < pivot]
    middle = [x for x in items if x == pivot]
    right = [x for x in items if x > pivot]
    return quick_sort(left) + middle + quick_sort(right)
# merge | merge two sorted lists into one sorted list | left: a, first; right: b, second
def merge(left, right):
    {doc}
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]
# merge_sort | return a sorted copy of a list by merging halves | items: values, arr, lst
def merge_sort(items):
    {doc}
    if len(items) <= 1:
        return items
    mid = len(items) // 2
    return merge(merge_sort(items[:mid]), merge_sort(items[mid:]))
# reverse_string | return the string reversed | s: text, string, word
def reverse_string(s):
    {doc}
    return s[::-1]
# is_palindrome | return True if the text reads the same backwards | text: s, word, string
def is_palindrome(text):
    {doc}
    cleaned = [c.lower() for c in text if c.isalnum()]
    return cleaned == cleaned[::-1]
# count_words | return how often each word occurs in the text | text: s, line, document
def count_words(text):
    {doc}
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts
# count_vowels | return the number of vowels in the text | text: s, word
def count_vowels(text):
    {doc}
    return sum(1 for c in text.lower() if c in "aeiou")
# is_anagram | return True if two words use the same letters | a: first, s; b: second, t
def is_anagram(a, b):
    {doc}
    return sorted(a.lower()) == sorted(b.lower())
# caesar | shift every letter of the text by a number of places | text: s, message; shift: key, k
def caesar(text, shift):
    {doc}
    result = []
    for c in text:
        if c.isalpha():
            base = ord("A") if c.isupper() else ord("a")
            c = chr((ord(c) - base + shift) % 26 + base)
        result.append(c)
    return "".join(result)
# flatten | return a flat list of the items of nested lists | items: nested, values
def flatten(items):
    {doc}
    result = []
    for item in items:
        if isinstance(item, (list, tuple)):
            result.extend(flatten(item))
        else:
            result.append(item)
    return result
# chunks | yield successive chunks of a list | items: values, seq; size: n, length
def chunks(items, size):
    {doc}
    for i in range(0, len(items), size):
        yield items[i:i + size]
# unique | return the items without duplicates, in order | items: values, seq
def unique(items):
    {doc}
    seen = set()
    result = []
    for item in items:
        if item not in seen:
            seen.add(item)
            result.append(item)
    return result
# transpose | return a matrix with rows and columns exchanged | matrix: rows, m
def transpose(matrix):
    {doc}
    return [list(row) for row in zip(*matrix)]
# matmul | return the product of two matrices | a: x, m; b: y, n
def matmul(a, b):
    {doc}
    columns = list(zip(*b))
    return [[sum(p * q for p, q in zip(row, col)) for col in columns] for row in a]
# mean | return the arithmetic mean of the values | values: items, data, numbers
def mean(values):
    {doc}
    if not values:
        raise ValueError("mean requires at least one value")
    return sum(values) / len(values)
# median | return the median of the values | values: items, data, numbers
def median(values):
    {doc}
    ordered = sorted(values)
    mid = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[mid]
    return (ordered[mid - 1] + ordered[mid]) / 2
# variance | return the population variance of the values | values: items, data, numbers
def variance(values):
    {doc}
    average = sum(values) / len(values)
    return sum((value - average) ** 2 for value in values) / len(values)
# clamp | limit a value to a range | value: x, n; low: lo, lower; high: hi, upper
def clamp(value, low, high):
    {doc}
    return max(low, min(value, high))
# power | return base raised to a non-negative integer exponent | base: x, b; exponent: n, e
def power(base, exponent):
    {doc}
    result = 1
    while exponent > 0:
        if exponent % 2:
            result *= base
        base *= base
        exponent //= 2
    return result
# digit_sum | return the sum of the decimal digits of n | n: num, number
def digit_sum(n):
    {doc}
    total = 0
    n = abs(n)
    while n:
        total += n % 10
        n //= 10
    return total
# is_leap_year | return True for leap years | year: y
def is_leap_year(year):
    {doc}
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
# fizzbuzz | print the numbers up to n, with Fizz, Buzz and FizzBuzz | n: limit, stop
def fizzbuzz(n):
    {doc}
    for i in range(1, n + 1):
        if i % 15 == 0:
            print("FizzBuzz")
        elif i % 3 == 0:
            print("Fizz")
        elif i % 5 == 0:
            print("Buzz")
        else:
            print(i)
# hanoi | print the moves that solve the Towers of Hanoi | n: disks, count
def hanoi(n, source, target, spare):
    {doc}
    if n == 0:
        return
    hanoi(n - 1, source, spare, target)
    print(f"Move disk {{n}} from {{source}} to {{target}}")
    hanoi(n - 1, spare, target, source)
# collatz | return the Collatz sequence that starts at n | n: start, num
def collatz(n):
    {doc}
    sequence = [n]
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        sequence.append(n)
    return sequence
# add | return the sum of a and b | a: x; b: y
def add(a, b):
    {doc}
    return a + b
# subtract | return the difference of a and b | a: x; b: y
def subtract(a, b):
    {doc}
    return a - b
# multiply | return the product of a and b | a: x; b: y
def multiply(a, b):
    {doc}
    return a * b
# divide | return the quotient of a and b | a: x; b: y
def divide(a, b):
    {doc}
    if b == 0:
        raise ZeroDivisionError("division by zero")
    return a / b
# celsius_to_fahrenheit | convert a temperature from Celsius to Fahrenheit | celsius: c, degrees, temp
def celsius_to_fahrenheit(celsius):
    {doc}
    return celsius * 9 / 5 + 32
# find_max | return the largest item of a list | items: values, numbers, lst
def find_max(items):
    {doc}
    largest = items[0]
    for item in items[1:]:
        if item > largest:
            largest = item
    return largest
# sum_list | return the sum of the items of a list | items: values, numbers, lst
def sum_list(items):
    {doc}
    total = 0
    for item in items:
        total += item
    return total
# read_lines | return the lines of a text file without line ends | path: filename, name
def read_lines(path):
    {doc}
    with open(path, encoding="utf-8") as f:
        return [line.rstrip("\\n") for line in f]
# write_lines | write lines to a text file | path: filename, name; lines: rows
def write_lines(path, lines):
    {doc}
    with open(path, "w", encoding="utf-8") as f:
        for line in lines:
            f.write(line + "\\n")
# load_json | return the object stored in a JSON file | path: filename, name
def load_json(path):
    {doc}
    import json

    with open(path, encoding="utf-8") as f:
        return json.load(f)
# memoize | cache the results of a function by its arguments | func: f, function
def memoize(func):
    {doc}
    cache = {}

    def wrapper(*args):
        if args not in cache:
            cache[args] = func(*args)
        return cache[args]

    return wrapper
# timer | print how long a function takes to run | func: f, function
def timer(func):
    {doc}
    import time

    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        result = func(*args, **kwargs)
        print(f"{{func.__name__}} took {{time.perf_counter() - start:.6f}} s")
        return result

    return wrapper
# bfs | return the nodes of a graph in breadth-first order | graph: g, edges; start: source, root
def bfs(graph, start):
    {doc}
    seen = [start]
    queue = [start]
    while queue:
        node = queue.pop(0)
        for neighbour in graph[node]:
            if neighbour not in seen:
                seen.append(neighbour)
                queue.append(neighbour)
    return seen
# dfs | return the nodes of a graph in depth-first order | graph: g, edges; start: source, root
def dfs(graph, start, seen=None):
    {doc}
    if seen is None:
        seen = []
    seen.append(start)
    for neighbour in graph[start]:
        if neighbour not in seen:
            dfs(graph, neighbour, seen)
    return seen
# to_binary | return the binary digits of a non-negative integer | n: num, number
def to_binary(n):
    {doc}
    if n == 0:
        return "0"
    digits = []
    while n:
        digits.append(str(n % 2))
        n //= 2
    return "".join(reversed(digits))
# permutations | return all orderings of the items | items: values, seq
def permutations(items):
    {doc}
    if len(items) <= 1:
        return [list(items)]
    result = []
    for i in range(len(items)):
        rest = items[:i] + items[i + 1:]
        for tail in permutations(rest):
            result.append([items[i]] + tail)
    return result
# Stack | a last-in, first-out container
class Stack:
    {doc}

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def __len__(self):
        return len(self.items)
# Queue | a first-in, first-out container
class Queue:
    {doc}

    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)

    def get(self):
        if not self.items:
            raise IndexError("get from an empty queue")
        return self.items.pop(0)

    def __len__(self):
        return len(self.items)
# Point | a point in the plane
class Point:
    {doc}

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def distance(self, other):
        return ((self.x - other.x) ** 2 + (self.y - other.y) ** 2) ** 0.5

    def __repr__(self):
        return f"Point({{self.x!r}}, {{self.y!r}})"
# main | run the program
def main():
    {doc}
    print("Hello, world!")
# hello | print a greeting | name: who, person
def hello(name):
    {doc}
    print(f"Hello, {{name}}!")
"""


def snippets() -> list[Snippet]:
    """Every function of this file, in order."""
    found = []
    for part in re.split(r"^# ", _RAW.strip() + "\n", flags=re.MULTILINE)[1:]:
        head, source = part.split("\n", 1)
        name, does, *rest = (field.strip() for field in head.split("|"))
        renames = {}
        for group in rest[0].split(";") if rest else []:
            old, new = group.split(":")
            renames[old.strip()] = tuple(word.strip() for word in new.split(","))
        # Only {doc} is a slot; the doubled braces are what a format string would have written.
        source = source.replace("{{", "{").replace("}}", "}").replace("\\\\n", "\\n")
        found.append(Snippet(name, does, source, renames))
    return found


def render(snippet: Snippet, rng: random.Random, *, plain: bool = False) -> str:
    """One spelling of *snippet*: Python source that ends in a newline.

    ``plain`` keeps the argument names and the docstring-free form, the likeliest to be asked for.
    """
    source = snippet.source
    sentence = snippet.does[0].upper() + snippet.does[1:] + "."
    keep_doc = not plain and rng.random() < 0.4
    if keep_doc:
        source = source.replace("{doc}", f'"""{sentence}"""')
    else:
        source = re.sub(r"    \{doc\}\n\n?", "", source)
    if not plain and rng.random() < 0.3:
        for old, new in snippet.renames.items():
            source = re.sub(rf"\b{old}\b", rng.choice(new), source)
    return source


def modules(rng: random.Random, count: int) -> Iterator[str]:
    """*count* small modules of three to eight functions each, some with a main block."""
    pool = snippets()
    for index in range(count):
        # Every function opens a module equally often: a prompt is most like the start of a file.
        chosen = [pool[index % len(pool)]]
        chosen += rng.sample([s for s in pool if s is not chosen[0]], rng.randint(2, 7))
        parts = [render(s, rng, plain=rng.random() < 0.45) for s in chosen]
        text = "\n\n".join(parts)
        if rng.random() < 0.3:
            text += f'\n\nif __name__ == "__main__":\n    print({chosen[0].name})\n'
        yield text


def questions(rng: random.Random) -> list[tuple[str, str]]:
    """Requests for code with the code as the answer, as (question, answer)."""
    forms = (
        "Write a function that {gist}.",
        "Write a Python function to {does}.",
        "Write a Python function called {name}.",
        "Write {name} in Python.",
        "How do I {does}?",
        "Show me code for {name}.",
        "Implement {name}.",
    )
    out = []
    for s in snippets():
        verb = s.does.split(" ", 1)
        noun_like = s.source.startswith("class ")
        for form in forms:
            if noun_like and ("{does}" in form or "{gist}" in form):
                form = "Write a Python class for {does}."
            gist = f"{verb[0]}s {verb[1]}" if len(verb) > 1 else s.does
            question = form.format(name=s.name.replace("_", " "), does=s.does, gist=gist)
            answer = f"Here is `{s.name}`:\n\n```python\n{render(s, rng, plain=True)}```"
            out.append((question, answer))
    return out
