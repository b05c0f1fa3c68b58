"""What --json prints is as docs/reference/json says."""
import json
import os

from harness import ROOT_OF_TESTS, case

SCHEMAS = os.path.join(os.path.dirname(ROOT_OF_TESTS), "docs", "reference", "json")
# Words of JSON Schema that differs() knows; others would be ignored.
KNOWN = {"$schema", "title", "description", "type", "enum", "properties", "required",
         "additionalProperties", "items"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
         "integer": int, "number": (int, float)}


def differs(value, schema, path="$"):
    """Where a value isn't as the schema says, in words; empty: it is."""
    unknown = set(schema) - KNOWN
    if unknown:
        return ["%s: the schema has %s" % (path, unknown)]
    types = schema.get("type", list(TYPES))
    types = [types] if isinstance(types, str) else types
    is_one = [t for t in types if isinstance(value, TYPES[t])
              and not (isinstance(value, bool) and t in ("integer", "number"))]
    if not is_one:
        return ["%s: %r is no %s" % (path, value, types)]
    if "enum" in schema and value not in schema["enum"]:
        return ["%s: %r is none of %s" % (path, value, schema["enum"])]
    bad = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        bad += ["%s: %s is missing" % (path, k) for k in schema.get("required", []) if k not in value]
        for key, inner in value.items():
            more = schema.get("additionalProperties", True)
            if key in known:
                bad += differs(inner, known[key], path + "." + key)
            elif more is False:
                bad.append("%s: %s isn't in the schema" % (path, key))
            elif more is not True:
                bad += differs(inner, more, path + "." + key)
    for i, inner in enumerate(value if isinstance(value, list) else []):
        bad += differs(inner, schema.get("items", {}), "%s[%d]" % (path, i))
    return bad


@case(30)
def json_has_its_schema(t):
    used = set()

    def fits(name, *words, rc=0, **more):
        r = t.fb(*words, rc=rc, **more)
        with open(os.path.join(SCHEMAS, name + ".json")) as f:
            schema = json.load(f)
        used.add(name)
        value = r.json()
        bad = differs(value, schema)
        t.check("%s of %s" % (name, " ".join(words)), lambda: t.ok(not bad, "\n".join(bad[:10])))
        return value
    # The check itself finds what is wrong.
    with open(os.path.join(SCHEMAS, "version.json")) as f:
        schema = json.load(f)
    good = t.fb("version", "--json").json()
    for change in ({"version": 1}, {"more": 1}, {"formats": {"pool": 1}}, {"features": [1]}):
        t.ok(differs({**good, **change}, schema), "%s passes" % change)

    os.mkdir(t.work + "/src")
    t.file(t.work + "/src/file", 5000)
    fits("version", "version", "--json")
    fits("doctor", "doctor", "--json", "--no-trial", "--hosts", "x", "--rsh", "false")
    fits("up", "up", "--json", "--pool", "one", "--media", "memory:64M", "--media",
         "files:%s:64M" % t.disk)
    fits("up", "up", "--json", "--pool", "two", "--nodes", "2", "--media", "memory:64M")
    os.mkdir(t.work + "/origin")
    t.file(t.work + "/origin/x", 10)
    fits("up", "up", "--json", "--pool", "slow", "--origin", t.work + "/origin", "--media",
         "memory:64M")
    os.mkdir(t.work + "/tier")
    with open(t.work + "/campaigns.toml", "w") as f:
        f.write('registry = "%s/campaigns"\n[tier.scratch]\npath = "%s/tier"\n' % (t.work, t.work))
    env = {**os.environ, "FOREBAY_CAMPAIGNS": t.work + "/campaigns.toml"}
    fits("campaign", "campaign", "create", "c", "1G,100files,scratch,2d", "--json", env=env)
    fits("campaign", "campaign", "show", "c", "--count", "--json", env=env)
    t.fb("campaign", "up", "c", "--media", "memory:64M", env=env)
    fits("campaigns", "campaign", "list", "--json", env=env)
    fits("campaigns", "campaignd", "--once", "--json", env=env)
    t.fb("campaign", "down", "c", env=env)
    with open(t.work + "/rules.toml", "w") as f:
        f.write('[[rule]]\npath = "/ckpt/**"\nmutability = "immutable"\non_violation = "report"\n')
    t.fb("up", "--pool", "ruled", "--media", "memory:64M", "--rules", t.work + "/rules.toml")
    shown = fits("rules-show", "rules", "show", "--json", "--pool", "ruled")
    t.ok(shown[0]["controls"]["mutability"] == "immutable", str(shown))
    fits("rules-explain", "rules", "explain", "--json", "/ckpt/x", "--pool", "ruled")
    fits("rules-explain", "rules", "explain", "--json", "--file", t.work + "/rules.toml", "/ckpt/x")
    t.exec("slow", "cat", t.work + "/origin/x")
    fits("origin-status", "origin", "status", "--json", "--pool", "slow")
    for pool in ("one", "two"):
        of = ("--json", "--pool", pool)
        fits("stage", "stage", "in", "--dry-run", "src", "/s", *of)
        fits("stage", "stage", "in", "src", "/s", *of)
        os.mkfifo(t.work + "/src/fifo")
        fits("stage", "stage", "in", "src", "/s", *of)
        os.unlink(t.work + "/src/fifo")
        t.bash(pool, "cd /fb; ln -s file s/link; mkfifo s/fifo; mkdir s/d")
        fits("ls", "ls", "-aR", *of)
        fits("find", "find", *of)
        fits("df", "df", *of)
        user = t.start_python(pool, "import sys; open('/fb/open', 'w'); print(flush=True); sys.stdin.read()",
                              stdin=-1)
        user.stdout.readline()
        fits("status", "status", *of)
        fits("status", "status", "--all", *of)
        user.communicate(b"")
        t.fb("set", "/s/file", "mutability=immutable", "on_violation=report", "--pool", pool, rc=None)
        t.bash(pool, "echo x >> /fb/s/file", rc=None)
        fits("set", "set", "/s", *of)
        fits("set", "set", "/s/file", *of)
        fits("rules-explain", "rules", "explain", "/s", *of)
        fits("rules-explain", "rules", "explain", "/s/file", *of)
        fits("violations", "violations", *of)
        fits("fsck", "fsck", *of)
        fits("stats", "stats", *of)
        fits("trace-list", "trace", "list", *of)
        t.fb("trace", "on", "CALL_ENTER", "--pool", pool)
        fits("trace-status", "trace", "status", *of)
        t.fb("trace", "off", "--all", "--pool", pool, rc=None)
        fits("pools", "pools", "--json")
        t.fb("workspace", "create", "w", "--meta", "a=b", "--pool", pool)
        t.fb("collection", "create", "w", "c", "--meta", "k=v", "--pool", pool)
        fits("workspaces", "workspace", "list", *of)
        fits("workspaces", "workspace", "find", 'a = "b"', *of)
        fits("workspace", "workspace", "show", "w", *of)
        fits("collections", "collection", "list", "w", *of)
        fits("collections", "collection", "find", "w", 'k = "v"', *of)
        fits("collection", "collection", "show", "w", "c", *of)
    # Nodes that are dead; pools that are.
    t.fb("node", "kill", "1", "--pool", "two")
    dead = fits("status", "status", "--json", "--pool", "two")
    t.ok([n["state"] for n in dead["nodes"]] == ["up", "dead"], str(dead))
    fits("df", "df", "--json", "--pool", "two")
    t.fb("node", "restart", "1", "--pool", "two")
    fits("pools", "pools", "--json")
    t.ok(used == {n[:-5] for n in os.listdir(SCHEMAS)}, "schemas that aren't used: %s" % (
        {n[:-5] for n in os.listdir(SCHEMAS)} - used))
