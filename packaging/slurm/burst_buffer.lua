--[[ Slurm's burst_buffer/lua: stage-in before a job has its nodes, stage-out after it has given them back.

  slurm.conf:         BurstBufferType=burst_buffer/lua       (also an empty burst_buffer.conf beside it)
  beside slurm.conf:  this file, with the three settings below; and burst_buffer_stage

  #BB_LUA forebay size=100G
  #BB_LUA forebay stage_in /home/me/case /case
  #BB_LUA forebay stage_out /case/results /home/me/results-%j

slurmctld's host makes a pool on `files` media below `directory`, which the nodes see by the same path, fills it, and
lets it go; the job opens it there (examples/slurm/burst_buffer.sh). Afterwards slurmctld's host opens it again.
Scripts are input of users: words of few signs only, quoted all the same, and everything runs with the user's rights. ]]

-- What a site sets: the directory (root's, mode 0755), the command, the script that does the work.
local directory = "/burst/forebay"
local program = "/usr/local/bin/forebay"
local stage = "/etc/slurm/burst_buffer_stage"

-- How far a script is read (bytes), and how many pairs there may be.
local MAX_SCRIPT_BYTES, MAX_PAIRS = 65536, 16

-- The requests of a script: {size, stage_in = {from, to, ...}, stage_out = {...}}; or nil, and what is wrong.
local function read(path, job)
    local file = io.open(path, "r")
    if not file then
        return nil, "the job's script can't be read"
    end
    local text = file:read(MAX_SCRIPT_BYTES) or ""
    file:close()
    local found = { stage_in = {}, stage_out = {} }
    for line in text:gmatch("[^\r\n]+") do
        local rest = line:match("^#BB_LUA%s+forebay%s+(.*)$")
        local words = {}
        for word in (rest or ""):gmatch("%S+") do
            word = word:gsub("%%j", job)
            if not word:match("^[%w._/+=:,@-]+$") then
                return nil, "a line #BB_LUA forebay has signs that aren't known here; no shell expands it"
            end
            words[#words + 1] = word
        end
        local list = found[words[1]]
        if rest and words[1] and words[1]:match("^size=%w+$") and #words == 1 then
            found.size = words[1]:sub(6)
        elseif list and words[1] ~= "size" and #words == 3 then
            local outside, inside = words[2], words[3]
            if words[1] == "stage_out" then
                outside, inside = inside, outside
            end
            if not (outside:match("^/") or outside:match("^s3://")) or not inside:match("^/") then
                return nil, words[1] .. ": paths begin with /, since this isn't the job's directory"
            end
            if #list == 2 * MAX_PAIRS then
                return nil, words[1] .. ": more than 16 lines"
            end
            list[#list + 1], list[#list + 2] = words[2], words[3]
        elseif rest then
            return nil, "#BB_LUA forebay takes size=SIZE, stage_in SRC DST or stage_out SRC DST"
        end
    end
    if not found.size and (#found.stage_in > 0 or #found.stage_out > 0) then
        return nil, "#BB_LUA forebay size=SIZE is missing"
    end
    return found
end

local function is_number(text)
    return tostring(text):match("^%d+$") ~= nil
end

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Runs words: whether they succeeded, and their output. (Slurm may have Lua 5.1, whose pipes have no exit code.)
local function output_of(words)
    local line = {}
    for n, word in ipairs(words) do
        line[n] = quoted(word)
    end
    local pipe = io.popen("{ " .. table.concat(line, " ") .. "; } 2>&1 < /dev/null; echo \" $?\"")
    local text = pipe and pipe:read("*a") or ""
    if pipe then
        pipe:close()
    end
    local output, code = text:match("^(.*) (%d+)\n$")
    return code == "0", output or text
end

-- Runs words with the user's rights. SUCCESS, or ERROR and the last line of the output, which is the job's reason then.
local function run(uid, gid, words)
    local line = { "setpriv", "--reuid=" .. uid, "--regid=" .. gid, "--init-groups", "--" }
    for _, word in ipairs(words) do
        line[#line + 1] = word
    end
    local is_done, output = output_of(line)
    if is_done then
        return slurm.SUCCESS, ""
    end
    slurm.log_error("forebay: %s: %s", table.concat(words, " "):sub(1, 200), output:sub(1, 1000))
    return slurm.ERROR, output:match("([^\n]+)\n*$") or "no message"
end

-- Calls `stage` for a job: "in", "out", "remove" or "drop". The job's directory, made by slurm_bb_setup, says whose the
-- job is: Slurm 22.05 doesn't tell these functions. Its parent is root's, so that nobody else can put another there.
local function call(direction, job_id, job_script)
    if not is_number(job_id) then
        return slurm.ERROR, "forebay: not a job: " .. tostring(job_id)
    end
    local dir = directory .. "/job-" .. job_id
    local _, owner = output_of({ "stat", "-c", "%F %u %g", dir })
    local uid, gid = owner:match("^directory (%d+) (%d+)")
    if not uid then
        return slurm.SUCCESS, ""
    end
    local found, wrong = read(job_script, job_id)
    if not found then
        return slurm.ERROR, wrong
    end
    local list = direction == "in" and found.stage_in or direction == "out" and found.stage_out or {}
    local words = { stage, program, direction, dir, "job-" .. job_id, found.size or "0" }
    for _, word in ipairs(list) do
        words[#words + 1] = word
    end
    local rc, message = run(uid, gid, words)
    if rc == slurm.SUCCESS and (direction == "remove" or direction == "drop") then
        os.remove(dir)
    end
    return rc, message
end

function slurm_bb_job_process(job_script, uid, gid)
    local found, wrong = read(job_script, "0")
    if not found then
        return slurm.ERROR, wrong
    end
    return slurm.SUCCESS, ""
end

function slurm_bb_pools()
    return slurm.SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local found, wrong = read(job_script, job_id)
    if not found then
        return slurm.ERROR, wrong
    end
    if not (is_number(job_id) and is_number(uid) and is_number(gid)) then
        return slurm.ERROR, "forebay: not a job: " .. tostring(job_id)
    end
    local dir = directory .. "/job-" .. job_id
    local is_made, output = true, ""
    if found.size then
        is_made, output = output_of({ "install", "-d", "-m", "700", "-o", uid, "-g", gid, dir })
    end
    return is_made and slurm.SUCCESS or slurm.ERROR, output
end

function slurm_bb_data_in(job_id, job_script)
    return call("in", job_id, job_script)
end

function slurm_bb_real_size(job_id, uid, gid)
    return slurm.SUCCESS
end

function slurm_bb_paths(job_id, job_script, path_file)
    local found = read(job_script, job_id)
    if found and found.size and is_number(job_id) then
        local file = io.open(path_file, "w")
        if not file then
            return slurm.ERROR, "forebay: the job's variables can't be written"
        end
        file:write("FOREBAY_STAGED=" .. directory .. "/job-" .. job_id .. "\n")
        file:close()
    end
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script)
    return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script)
    return slurm.SUCCESS
end

function slurm_bb_data_out(job_id, job_script)
    return call("out", job_id, job_script)
end

-- After stage-out, and when a job is cancelled. `hurry`: scancel --hurry, which gives up what isn't saved.
function slurm_bb_job_teardown(job_id, job_script, hurry)
    return call(hurry == "true" and "drop" or "remove", job_id, job_script)
end

function slurm_bb_get_status(uid, gid, ...)
    return slurm.SUCCESS, "Forebay keeps jobs' pools below " .. directory .. "\n"
end
