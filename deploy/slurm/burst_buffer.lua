-- Stoker under Slurm: what a job script says in its #STOKER lines is staged while the job waits, let go when it is over, and its output
-- drained. Slurm calls these functions; the work is done by the nodes, so that a call that is killed leaves nothing behind.
-- Further arguments of later releases of Slurm are ignored on purpose. docs/jobs.md says how to install it.

local CONF = "/etc/stoker/slurm.env"

local function read_conf()
  local conf = {}
  local file = io.open(CONF, "r")
  if not file then return conf end
  for line in file:lines() do
    local name, value = line:match("^([%u_]+)=(.*)$")
    if name then conf[name] = value end
  end
  file:close()
  return conf
end

local function quote(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

-- Runs `stoker job ...`; gives whether that went well, and what it said.
local function job(conf, verb, args)
  local command = (conf.STOKER_BIN or "stoker") .. " job " .. verb
  -- `check` asks no node.
  if verb ~= "check" then command = command .. " " .. (conf.STOKER_ARGS or "") end
  local pipe = io.popen(command .. " " .. args .. " 2>&1; echo \"exit $?\"", "r")
  local said = pipe:read("*a") or ""
  pipe:close()
  local text, code = said:match("^(.*)exit (%d+)%s*$")
  text = (text or said):gsub("%s+$", "")
  return code == "0", text
end

local function id_of(job_id)
  return quote("slurm-" .. tostring(job_id))
end

local function user_of(uid)
  local pipe = io.popen("id -un " .. tonumber(uid) .. " 2>/dev/null", "r")
  local name = (pipe:read("*l") or ""):match("^[%w%._-]+$")
  pipe:close()
  return name
end

-- Whose job it is: an owner that somebody named, else the name of the user for templates.
local function who(conf, uid)
  local user = user_of(uid)
  if not user then return "" end
  local file = conf.STOKER_OWNERS and io.open(conf.STOKER_OWNERS, "r")
  if file then
    for line in file:lines() do
      local name, owner = line:match("^%s*([%w%._-]+)%s+([%w/-]+)%s*$")
      if name == user then
        file:close()
        return "--owner " .. quote(owner)
      end
    end
    file:close()
  end
  return "--user " .. quote(user)
end

-- A tenant stands in front of the id for those who run the cluster.
local function name_of(conf, job_id, uid)
  local owner = uid and who(conf, uid):match("^%-%-owner '([%w-]+)/")
  if owner then return quote(owner .. "/slurm-" .. tostring(job_id)) end
  return id_of(job_id)
end

-- Later calls of 22.05 do not say whose job it is: it was written down.
local function remember(conf, job_id, name)
  local file = io.open((conf.JOBS_DIR or "/run/stoker/jobs") .. "/ctld-" .. tonumber(job_id), "w")
  if file then
    file:write(name)
    file:close()
  end
end

local function recall(conf, job_id)
  local file = io.open((conf.JOBS_DIR or "/run/stoker/jobs") .. "/ctld-" .. tonumber(job_id), "r")
  if not file then return id_of(job_id) end
  local name = file:read("*l")
  file:close()
  return name or id_of(job_id)
end

local function forget(conf, job_id)
  os.remove((conf.JOBS_DIR or "/run/stoker/jobs") .. "/ctld-" .. tonumber(job_id))
end

function slurm_bb_job_process(job_script)
  local ok, said = job(read_conf(), "check", "--script " .. quote(job_script))
  if ok then return slurm.SUCCESS end
  return slurm.ERROR, said
end

function slurm_bb_pools()
  return slurm.SUCCESS, '{"pools":[{"id":"stoker","quantity":1,"granularity":1}]}'
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
  local conf = read_conf()
  os.execute("mkdir -p " .. quote(conf.JOBS_DIR or "/run/stoker/jobs"))
  local name = name_of(conf, job_id, uid)
  remember(conf, job_id, name)
  -- One of an earlier start of this job, or of this controller.
  job(conf, "cancel", "--if-there --reason 'submitted again' " .. name)
  local args = "--script " .. quote(job_script) .. " --id " .. id_of(job_id) .. " " .. who(conf, uid)
  local ok, said = job(conf, "submit", args)
  if ok then return slurm.SUCCESS end
  return slurm.ERROR, said
end

function slurm_bb_data_in(job_id, job_script)
  local conf = read_conf()
  local args = "--until ready --timeout " .. (conf.STAGE_IN_TIMEOUT or "590s") .. " " .. recall(conf, job_id)
  local ok, said = job(conf, "wait", args)
  if ok then return slurm.SUCCESS end
  return slurm.ERROR, said
end

function slurm_bb_test_data_in(job_id, job_script)
  return slurm.SUCCESS, ""
end

function slurm_bb_real_size(job_id)
  return slurm.SUCCESS
end

function slurm_bb_paths(job_id, job_script, path_file)
  local conf = read_conf()
  local ok, said = job(conf, "show", "--env " .. recall(conf, job_id))
  if not ok then return slurm.ERROR, said end
  local file = io.open(path_file, "w")
  if not file then return slurm.ERROR, "stoker: cannot write " .. path_file end
  file:write(said, "\nSTOKER_ROOT=", conf.JOBS_DIR or "/run/stoker/jobs", "/", tonumber(job_id), "\n")
  file:close()
  return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script)
  local conf = read_conf()
  local ok, said = job(conf, "start", recall(conf, job_id))
  if ok then return slurm.SUCCESS end
  return slurm.ERROR, said
end

function slurm_bb_post_run(job_id, job_script)
  return slurm.SUCCESS
end

function slurm_bb_data_out(job_id, job_script)
  local conf = read_conf()
  local name = recall(conf, job_id)
  local ok, said = job(conf, "end", name)
  if not ok then return slurm.ERROR, said end
  ok, said = job(conf, "wait", "--until over --timeout " .. (conf.STAGE_OUT_TIMEOUT or "590s") .. " " .. name)
  if ok then return slurm.SUCCESS end
  return slurm.ERROR, said
end

function slurm_bb_test_data_out(job_id, job_script)
  return slurm.SUCCESS, ""
end

function slurm_bb_job_teardown(job_id, job_script, hurry)
  local conf = read_conf()
  local ok, said = job(conf, "cancel", "--if-there --reason 'the scheduler let it go' " .. recall(conf, job_id))
  if not ok then return slurm.ERROR, said end
  forget(conf, job_id)
  return slurm.SUCCESS
end

function slurm_bb_get_status(...)
  return slurm.SUCCESS, ""
end
