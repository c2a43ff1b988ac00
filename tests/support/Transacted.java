// JMS client with a transacted session: moves messages from one queue to another, with rollbacks in between.
import jakarta.jms.*;
import org.apache.qpid.jms.JmsConnectionFactory;

public class Transacted {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], from = arguments[1], to = arguments[2];
        int batch = Integer.parseInt(arguments[3]);
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            MessageProducer producer = session.createProducer(session.createQueue(to));
            connection.start();
            int moved = 0, redelivered = 0, rollbacks = 0;
            for (int turn = 0; ; turn++) {
                int held = 0;
                for (; held < batch; held++) {
                    TextMessage message = (TextMessage) consumer.receive(held == 0 && moved == 0 ? 10000 : 2000);
                    if (message == null)
                        break;
                    if (message.getJMSRedelivered())
                        redelivered++;
                    producer.send(session.createTextMessage(message.getText()));
                }
                if (held == 0)
                    break;
                if (turn % 3 == 1) {
                    session.rollback();
                    rollbacks++;
                } else {
                    session.commit();
                    moved += held;
                    System.out.println("moved " + moved);
                    System.out.flush();
                }
            }
            producer.send(session.createTextMessage("never committed"));
            System.out.println("ended " + moved + " " + redelivered + " " + rollbacks);
        }
    }
}
