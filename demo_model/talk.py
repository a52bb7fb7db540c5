"""Conversations written for the demo model: how-to questions and small talk, under the project's licence."""

# ruff: noqa: E501 -- one answer a line reads better than any way of folding it

from __future__ import annotations

_SELF = (
    "I am uma-demo, a very small model that comes with UMA Serve. I know a little about Python's standard "
    "library: ask me what a function does, or give me some code to complete."
)
_BEYOND = (
    "I am too small a model for that: I only know a little about Python's standard library. For anything else, "
    "point UMA Serve's --model at a larger model."
)

# (what people say, the answer)
SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hi", "Hey", "Good morning", "Hello there", "Hi there"), "Hello! " + _SELF),
    (("Who are you?", "What are you?", "What is your name?", "What model are you?", "Introduce yourself."), _SELF),
    (
        ("What can you do?", "Help", "What do you know?", "What can I ask you?", "How can you help me?"),
        "I can say what a function of Python's standard library does, for example: What does os.path.join do? "
        "I can also complete short Python code. For anything else, point UMA Serve's --model at a larger model.",
    ),
    (("Thanks", "Thank you", "Great", "OK", "Nice"), "You are welcome."),
    (("Bye", "Goodbye", "See you"), "Goodbye!"),
    (("How are you?", "How is it going?"), "I am running well, thank you. Ask me about a Python function."),
    (
        (
            "Tell me a story.", "Tell me a joke.", "Write a poem.", "Write a haiku about the sea.",
            "What is the weather like?", "What is the capital of France?", "What is the meaning of life?",
            "Who is the president?", "Translate this to German.", "How old is the universe?",
            "Write an essay about history.", "What should I eat today?", "What time is it?",
        ),
        _BEYOND,
    ),
    (
        ("What is Python?", "Tell me about Python.", "Explain Python.", "Why should I use Python?"),
        "Python is a programming language that is easy to read. It comes with a large standard library: modules "
        "for files, text, numbers, dates, networking and much more.",
    ),
)  # fmt: skip

# (the task, worded to follow "How do I", the answer)
HOW_TO: tuple[tuple[str, str], ...] = (
    ("open a file", "Use `open`, in a `with` block so that the file is closed:\n\n```python\nwith open(\"data.txt\", encoding=\"utf-8\") as f:\n    text = f.read()\n```"),
    ("read a file line by line", "Iterate over the file:\n\n```python\nwith open(\"data.txt\", encoding=\"utf-8\") as f:\n    for line in f:\n        print(line.rstrip())\n```"),
    ("write to a file", "Open it with mode \"w\" and call `write`:\n\n```python\nwith open(\"out.txt\", \"w\", encoding=\"utf-8\") as f:\n    f.write(\"Hello\\n\")\n```"),
    ("sort a list", "Use `list.sort()` to sort in place, or `sorted()` for a new list:\n\n```python\nitems = [3, 1, 2]\nitems.sort()\nordered = sorted(items, reverse=True)\n```"),
    ("reverse a list", "Use `list.reverse()` in place, or a slice for a new list:\n\n```python\nitems = [1, 2, 3]\nitems.reverse()\nbackwards = items[::-1]\n```"),
    ("reverse a string", "Use a slice with step -1:\n\n```python\ntext = \"hello\"\nprint(text[::-1])\n```"),
    ("split a string", "Use `str.split`:\n\n```python\nwords = \"a,b,c\".split(\",\")\n```"),
    ("join strings", "Use `str.join` on the separator:\n\n```python\nline = \", \".join([\"a\", \"b\", \"c\"])\n```"),
    ("join paths", "Use `os.path.join`, or the `/` operator of `pathlib.Path`:\n\n```python\nimport os.path\npath = os.path.join(\"folder\", \"file.txt\")\n```"),
    ("check if a file exists", "Use `os.path.exists`, or `pathlib.Path.exists`:\n\n```python\nimport os.path\nif os.path.exists(\"data.txt\"):\n    print(\"found\")\n```"),
    ("list the files in a directory", "Use `os.listdir`:\n\n```python\nimport os\nfor name in os.listdir(\".\"):\n    print(name)\n```"),
    ("create a directory", "Use `os.makedirs`:\n\n```python\nimport os\nos.makedirs(\"a/b\", exist_ok=True)\n```"),
    ("delete a file", "Use `os.remove`:\n\n```python\nimport os\nos.remove(\"old.txt\")\n```"),
    ("copy a file", "Use `shutil.copy`:\n\n```python\nimport shutil\nshutil.copy(\"a.txt\", \"b.txt\")\n```"),
    ("parse JSON", "Use `json.loads` for a string, or `json.load` for a file:\n\n```python\nimport json\ndata = json.loads('{\"a\": 1}')\n```"),
    ("write JSON", "Use `json.dump`:\n\n```python\nimport json\nwith open(\"data.json\", \"w\") as f:\n    json.dump({\"a\": 1}, f)\n```"),
    ("read a CSV file", "Use `csv.reader`:\n\n```python\nimport csv\nwith open(\"data.csv\", newline=\"\") as f:\n    for row in csv.reader(f):\n        print(row)\n```"),
    ("get the current time", "Use `datetime.datetime.now()`:\n\n```python\nimport datetime\nprint(datetime.datetime.now())\n```"),
    ("measure how long code takes", "Use `time.perf_counter`:\n\n```python\nimport time\nstart = time.perf_counter()\nprint(time.perf_counter() - start)\n```"),
    ("wait for a second", "Use `time.sleep`:\n\n```python\nimport time\ntime.sleep(1)\n```"),
    ("get a random number", "Use `random.randint` for an integer, or `random.random` for a float:\n\n```python\nimport random\nprint(random.randint(1, 6))\n```"),
    ("shuffle a list", "Use `random.shuffle`:\n\n```python\nimport random\nitems = [1, 2, 3]\nrandom.shuffle(items)\n```"),
    ("run a command", "Use `subprocess.run`:\n\n```python\nimport subprocess\nsubprocess.run([\"ls\", \"-l\"], check=True)\n```"),
    ("get the length of a list", "Use `len`:\n\n```python\nprint(len([1, 2, 3]))\n```"),
    ("add an item to a list", "Use `list.append`:\n\n```python\nitems = [1, 2]\nitems.append(3)\n```"),
    ("remove duplicates from a list", "Make a set of it, or use `dict.fromkeys` to keep the order:\n\n```python\nitems = list(dict.fromkeys([1, 2, 1]))\n```"),
    ("loop over a list", "Use a `for` statement:\n\n```python\nfor item in [1, 2, 3]:\n    print(item)\n```"),
    ("loop over a dictionary", "Use `dict.items`:\n\n```python\nfor key, value in {\"a\": 1}.items():\n    print(key, value)\n```"),
    ("convert a string to an integer", "Use `int`:\n\n```python\nnumber = int(\"42\")\n```"),
    ("convert a number to a string", "Use `str`, or an f-string:\n\n```python\ntext = str(42)\n```"),
    ("catch an exception", "Use `try` and `except`:\n\n```python\ntry:\n    value = int(\"x\")\nexcept ValueError:\n    value = 0\n```"),
    ("raise an exception", "Use `raise`:\n\n```python\nraise ValueError(\"n must be positive\")\n```"),
    ("define a function", "Use `def`:\n\n```python\ndef add(a, b):\n    return a + b\n```"),
    ("define a class", "Use `class`:\n\n```python\nclass Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n```"),
    ("import a module", "Use `import`:\n\n```python\nimport math\nprint(math.pi)\n```"),
    ("find the maximum of a list", "Use `max`:\n\n```python\nprint(max([3, 1, 2]))\n```"),
    ("sum a list", "Use `sum`:\n\n```python\nprint(sum([1, 2, 3]))\n```"),
    ("count items", "Use `collections.Counter`:\n\n```python\nfrom collections import Counter\nprint(Counter(\"banana\"))\n```"),
    ("use a regular expression", "Use the `re` module:\n\n```python\nimport re\nmatch = re.search(r\"\\d+\", \"room 12\")\nprint(match.group())\n```"),
    ("read an environment variable", "Use `os.environ`:\n\n```python\nimport os\nhome = os.environ.get(\"HOME\")\n```"),
    ("parse command line arguments", "Use `argparse`:\n\n```python\nimport argparse\nparser = argparse.ArgumentParser()\nparser.add_argument(\"name\")\nargs = parser.parse_args()\n```"),
    ("start a thread", "Use `threading.Thread`:\n\n```python\nimport threading\nthread = threading.Thread(target=print, args=(\"hello\",))\nthread.start()\nthread.join()\n```"),
    ("make a GET request", "Use `urllib.request.urlopen`:\n\n```python\nfrom urllib.request import urlopen\nwith urlopen(\"https://www.python.org\") as response:\n    page = response.read()\n```"),
    ("write a list comprehension", "Put the expression before the `for`:\n\n```python\nsquares = [n * n for n in range(10)]\n```"),
    ("format a string", "Use an f-string:\n\n```python\nname = \"Ada\"\nprint(f\"Hello, {name}!\")\n```"),
    ("round a number", "Use `round`:\n\n```python\nprint(round(3.14159, 2))\n```"),
    ("merge two dictionaries", "Use the `|` operator:\n\n```python\nmerged = {\"a\": 1} | {\"b\": 2}\n```"),
    ("compute a square root", "Use `math.sqrt`:\n\n```python\nimport math\nprint(math.sqrt(2))\n```"),
)  # fmt: skip
HOW_TO_FORMS = (
    "How do I {t}?",
    "How do I {t} in Python?",
    "How can I {t}?",
    "How to {t}",
    "How would you {t} in Python?",
    "Show me how to {t}.",
    "What is the best way to {t}?",
    "I want to {t}.",
    "Please {t}.",
)
