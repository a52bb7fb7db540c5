import { follow } from "./figures/follow.js";
import { setUpPanels } from "./panels.js";
import { setUpChat } from "./talk/chat.js";

setUpPanels();
setUpChat();
follow();
