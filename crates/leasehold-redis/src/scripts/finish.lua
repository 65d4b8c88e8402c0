-- One answer if all are the same: an answer for each takes a server longer.
if alike == #keys then return answers[1] end
if unsent then answers[#answers + 1] = unsent end
return answers
