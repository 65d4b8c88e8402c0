-- in: seen; the state is as it was written
if seen and answer[1] ~= 'failed' and answer[1] ~= 'damaged' then answer[2], answer[3], answer[4] = floor(now), state or '', seen end
