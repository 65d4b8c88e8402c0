-- Sends messages. What the server lets no script send goes back behind the answer, for the client to
-- send in commands of its own.
--
-- in: now.lua
-- include: refusal
local unsent

local function send(channel, text)
  local refused = refusal_of(redis.pcall('PUBLISH', channel, text))
  if not refused then return end
  unsent = unsent or {'unsent', refused[2]}
  unsent[#unsent + 1], unsent[#unsent + 2] = channel, text
end

-- The answer, and behind it "unsent", the server's error, and a channel and a text for each message
-- that it refused, if it refused any.
local function with_unsent(answer)
  if unsent then answer[#answer + 1] = unsent end
  return answer
end
