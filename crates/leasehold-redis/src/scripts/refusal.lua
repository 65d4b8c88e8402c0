-- in: now.lua

-- The answer that says that the server refused a call, by what pcall gave; nil when it did not.
local function refusal_of(told)
  if told ~= 1 and type(told) == 'table' and told.err then return {'failed', told.err} end
end
