-- Sends the notifications. If the server lets no script publish, they follow the answer, so that the client sends them
-- as commands: "unsent", the server's error, and a channel and a text for each.
for n = 1, messages and #messages or 0, 2 do
  local told = try('PUBLISH', messages[n], messages[n + 1])
  if type(told) ~= 'number' then
    unsent = unsent or {'unsent', told.err}
    unsent[#unsent + 1], unsent[#unsent + 2] = messages[n], messages[n + 1]
  end
end
