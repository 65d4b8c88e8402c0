-- One answer where it is the same of all: a server takes longer over an answer for each.
if alike == #keys then return answers[1] end
if unsent then answers[#answers + 1] = unsent end
return answers
